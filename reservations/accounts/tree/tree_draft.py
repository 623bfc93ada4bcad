"""The operator's collected edits: kept in the session until saved or discarded."""

from collections.abc import Iterable, Sequence

from django.http import HttpRequest

from reservations.accounts.tree.tree_edits import Edit

KEY = "tree_draft"
MOST_EDITS = 1000
"""The session is read with every page, so larger edits come as a file."""


def drafted(request: HttpRequest) -> list[Edit]:
    """Return the edits collected so far."""
    return [Edit.from_json(each) for each in request.session.get(KEY, [])]


def keep(request: HttpRequest, edits: Sequence[Edit]) -> None:
    """Store the collected edits in place of the previous ones."""
    request.session[KEY] = [edit.to_json() for edit in edits]


def forget(request: HttpRequest) -> None:
    """Discard the collected edits."""
    request.session.pop(KEY, None)


def merged(
    edits: Iterable[Edit], new: Iterable[Edit], names: dict[str, set[str]]
) -> list[Edit]:
    """Return collected edits, with those of one page replaced.

    Args:
        names: by table, the fields that the page shows. Of the rows in ``new`` these
            fields are replaced, even if the page has no edit of them.
    """
    replaced = {(edit.table, edit.pk): edit for edit in new if edit.pk is not None}
    found: list[Edit] = []
    for old in edits:
        fresh = replaced.pop((old.table, old.pk), None) if old.pk is not None else None
        if fresh is None:
            found.append(old)
            continue
        kept = {k: v for k, v in old.fields.items() if k not in names[old.table]}
        fields = kept | dict(fresh.fields)
        if fields:
            found.append(Edit(old.table, old.pk, old.version, fields))
    found += [edit for edit in replaced.values() if edit.fields]
    return found + [edit for edit in new if edit.pk is None]
