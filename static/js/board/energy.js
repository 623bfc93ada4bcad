// What the running bookings came to so far, once a minute for the whole board.

const EVERY_MS = 60_000;

/** Asks while the page is seen; `onEnergy` gets {gpu: {reservation, kwh}}. */
export function followEnergy(onEnergy) {
  const ask = async () => {
    if (document.hidden) return;
    const answer = await fetch("/board/energy").catch(() => null); // the last figures stand
    if (answer?.ok && !answer.redirected) onEnergy(await answer.json());
  };
  ask();
  setInterval(ask, EVERY_MS);
}
