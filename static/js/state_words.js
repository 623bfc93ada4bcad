// Names of the states of bookings and jobs, and of the kinds of bookings.
import { gettext } from "./words.js";

const KINDS = { firm: gettext("firm"), flex: gettext("flex") };
const STATES = {
  confirmed: gettext("confirmed"), active: gettext("active"), ended: gettext("ended"), released: gettext("released"),
  cancelled: gettext("cancelled"), displaced: gettext("displaced"), refunded: gettext("refunded"),
  queued: gettext("queued"), starting: gettext("starting"), running: gettext("running"), moving: gettext("moving"),
  stopping: gettext("stopping"), done: gettext("done"), failed: gettext("failed"), stopped: gettext("stopped"), lost: gettext("lost"),
  ready: gettext("ready"), loading: gettext("loading"), waiting: gettext("waiting"), refused: gettext("refused"),
};

/** The name of a booking's kind: "firm", "flex". */
export const kindWord = (kind) => KINDS[kind] ?? kind;

/** The name of a state: "confirmed". An unknown state is returned unchanged. */
export const stateWord = (state) => STATES[state] ?? state;
