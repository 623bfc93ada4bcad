"""`/ws/wall/<token>/`: the live board for a screen without a login."""

from channels.db import database_sync_to_async

from gpuportal.board.board_snapshot import Viewer
from gpuportal.board.consumers import BoardConsumer
from gpuportal.board.wall_links import viewer_of_link
from reservations.web.session_consumer import NOT_ALLOWED


class WallConsumer(BoardConsumer):
    """Sends roster, holders and frames, but no details of processes."""

    refused_code = NOT_ALLOWED
    recheck_seconds = 15.0
    """A screen goes dark within this time after its link was revoked."""

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        """Ignore requests: a screen shows what everybody may see."""

    async def _current_viewer(self) -> Viewer | None:
        token = self.scope["url_route"]["kwargs"]["token"][:100]
        return await database_sync_to_async(viewer_of_link)(token)
