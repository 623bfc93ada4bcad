// Energy of the running bookings so far, fetched once a minute for the whole board.

const EVERY_MS = 60_000;

/** Fetches while the page is visible. `onEnergy` gets {gpu: {reservation, kwh}}. */
export function followEnergy(onEnergy) {
  const ask = async () => {
    if (document.hidden) return;
    const answer = await fetch("/board/energy").catch(() => null); // keep the last figures
    if (answer?.ok && !answer.redirected) onEnergy(await answer.json());
  };
  ask();
  setInterval(ask, EVERY_MS);
}
