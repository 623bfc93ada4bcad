// The minute before the page was opened, for the start of the sparklines.

/** Gives the board the frames of the last minute, then paints. Without an answer the sparklines start empty. */
export async function takeMinute(board, paint) {
  const answer = await fetch("/board/minute").catch(() => null);
  // If the session has ended, the answer is the login page. The socket reports that.
  if (!answer?.ok || answer.redirected) return;
  board.takePast(await answer.arrayBuffer());
  paint();
}
