"""`/ws/wall/<token>/`: the live board for a screen that nobody signs in at."""

from channels.db import database_sync_to_async

from gpuportal.board.board_snapshot import Viewer
from gpuportal.board.consumers import BoardConsumer
from gpuportal.board.wall_links import viewer_of_link
from reservations.web.session_consumer import NOT_ALLOWED


class WallConsumer(BoardConsumer):
    """Sends roster, holders and frames, and no details of processes."""

    refused_code = NOT_ALLOWED
    recheck_seconds = 15.0
    """A revoked link goes dark within this time."""

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        """Take no request: a screen is shown what everybody may see."""

    async def _look(self) -> Viewer | None:
        token = self.scope["url_route"]["kwargs"]["token"][:100]
        return await database_sync_to_async(viewer_of_link)(token)
