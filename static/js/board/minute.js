// The minute before the page was opened: what sparklines start from.

/** Gives the board the last minute's frames, then paints. Without an answer they start empty. */
export async function takeMinute(board, paint) {
  const answer = await fetch("/board/minute").catch(() => null);
  // Signed out: the answer is the login page, and the socket says so too.
  if (!answer?.ok || answer.redirected) return;
  board.takePast(await answer.arrayBuffer());
  paint();
}
