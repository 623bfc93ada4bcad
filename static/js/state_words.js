// What the states of bookings and jobs, and the kinds of bookings, are called.
import { gettext } from "./words.js";

const KINDS = { firm: gettext("firm"), flex: gettext("flex") };
const STATES = {
  confirmed: gettext("confirmed"), active: gettext("active"), ended: gettext("ended"), released: gettext("released"),
  cancelled: gettext("cancelled"), displaced: gettext("displaced"), refunded: gettext("refunded"),
  queued: gettext("queued"), starting: gettext("starting"), running: gettext("running"), moving: gettext("moving"),
  stopping: gettext("stopping"), done: gettext("done"), failed: gettext("failed"), stopped: gettext("stopped"), lost: gettext("lost"),
  ready: gettext("ready"), loading: gettext("loading"), waiting: gettext("waiting"), refused: gettext("refused"),
};

/** A booking's kind in the reader's words: "firm", "flex". */
export const kindWord = (kind) => KINDS[kind] ?? kind;

/** A state in the reader's words: "confirmed"; one that is not known here stays as it is. */
export const stateWord = (state) => STATES[state] ?? state;
