"""Downloads of Jobs' results, for their owners only."""

from pathlib import PurePosixPath

from django.http import FileResponse, Http404, HttpRequest
from django.views.decorators.http import require_safe

from placement.jobs.nodes import result_files
from placement.jobs.views.viewer import reader
from placement.models import Job, ResultFile


@require_safe
def job_file(request: HttpRequest, pk: int, file_id: int) -> FileResponse:
    """Send one file of the User's Job. It is saved, never displayed."""
    job = Job.objects.filter(pk=pk, owner=reader(request)).first()
    row = None if job is None else result_files.stored_file(job, file_id)
    if row is None:
        raise Http404
    return sent(row)


def sent(row: ResultFile) -> FileResponse:
    """Return a file as an attachment that browsers do not interpret."""
    answer = FileResponse(
        result_files.path_of(row).open("rb"),
        as_attachment=True,
        filename=PurePosixPath(row.path).name,
        content_type="application/octet-stream",
    )
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Content-Security-Policy"] = "sandbox; default-src 'none'"
    answer["X-Sha256"] = row.sha256
    return answer
