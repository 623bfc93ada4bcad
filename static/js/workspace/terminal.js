// The page of a terminal. Keys go to the node as binary messages, and what it prints comes
// back. The page reports what it has drawn, so that a flood of text never runs ahead of it.
import { fetchPage, oneAtATime, replace, settled } from "../fragment.js";
import { openSocket, signedOut, toLogin } from "../live.js";
import { gettext } from "../words.js";

const LOOK_MS = 1500;
const SETTLED_MS = 300;
const REPORT_BYTES = 16 * 1024;
const PIECE_BYTES = 16 * 1024;
const WARN_MINUTES = [1, 10];
const NORMAL = 1000;
/** Going away, lost, restart, try again later, and the node's connection is lost. */
const LOST = [1001, 1006, 1012, 1013, 4502];
const AGAIN_MS = 1000;
const MOST_AGAIN_MS = 30000;
const SIGNED_OUT = 4401;
const KEYS = { escape: "\u001b", tab: "\t", interrupt: "\u0003", up: "\u001b[A", down: "\u001b[B" };
const dark = matchMedia("(prefers-color-scheme: dark)");

function setStyle(element, name, value) {
  if (name === "style") element.style.cssText = value;
  else Element.prototype.setAttribute.call(element, name, value);
}

/** Lets xterm.js write style elements and attributes. The Content Security Policy allows
 *  elements with the nonce of the page, and styles that are set by script. */
function allowStyles(nonce) {
  const create = document.createElement.bind(document);
  document.createElement = (tag, options) => {
    const element = create(tag, options);
    if (tag === "style") element.nonce = nonce;
    if (tag === "span") element.setAttribute = (name, value) => setStyle(element, name, value);
    return element;
  };
}

function themeOf(frame) {
  const { backgroundColor, color } = getComputedStyle(frame);
  return { background: backgroundColor, foreground: color, cursor: color, cursorAccent: backgroundColor, selectionBackground: "rgba(98, 178, 242, 0.4)" };
}

function openLink(event, address) {
  const url = URL.parse(address);
  if (url && ["http:", "https:"].includes(url.protocol)) window.open(url.href, "_blank", "noopener,noreferrer");
}

class TerminalPage {
  constructor(frame) {
    this.frame = frame;
    this.state = document.getElementById("terminal-state");
    this.again = document.getElementById("terminal-again");
    this.warning = document.getElementById("terminal-warning");
    this.unreported = 0;
    this.pause = AGAIN_MS;
    allowStyles(frame.dataset.nonce);
    this.terminal = new window.Terminal({
      fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
      fontSize: 14,
      lineHeight: 1.2,
      theme: themeOf(frame),
      minimumContrastRatio: 4.5,
      scrollback: 5000,
      linkHandler: { activate: openLink },
    });
    this.fit = new window.FitAddon.FitAddon();
    this.terminal.loadAddon(this.fit);
    this.terminal.open(frame);
    this.terminal.textarea.setAttribute("aria-describedby", "terminal-hint");
    this.terminal.attachCustomKeyEventHandler((event) => this.mayType(event));
    this.terminal.onData((text) => this.type(new TextEncoder().encode(text)));
    this.terminal.onBinary((text) => this.type(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    this.terminal.onResize(() => this.sendSize());
    new ResizeObserver(() => this.fit.fit()).observe(frame);
    const recolour = () => { this.terminal.options.theme = themeOf(frame); };
    dark.addEventListener("change", recolour);
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.again.addEventListener("click", () => this.connect());
    frame.addEventListener("focusin", () => this.open && this.tell(gettext("Connected.")));
    for (const button of document.querySelectorAll("[data-keys]")) {
      button.addEventListener("click", () => {
        this.type(new TextEncoder().encode(KEYS[button.dataset.keys]));
        this.terminal.focus();
      });
    }
    setInterval(() => this.warn(), 1000);
    this.connect();
  }

  connect({ byItself = false } = {}) {
    clearTimeout(this.timer);
    this.again.hidden = true;
    this.closed = false;
    this.tell(gettext("Connecting …"));
    this.socket = openSocket(`/ws/terminal/${this.frame.dataset.reservation}/`);
    this.socket.addEventListener("open", () => {
      this.unreported = 0;
      this.terminal.reset();
      this.fit.fit();
      this.sendSize();
      // Somebody who types while it is away must not have the end of a line sent alone.
      this.tell(byItself ? gettext("Connected again. Click into the terminal to type.") : gettext("Connected."));
      if (!byItself) this.terminal.focus();
    });
    this.socket.addEventListener("message", ({ data }) => {
      if (typeof data === "string") this.moveEnd(JSON.parse(data).end);
      else this.show(new Uint8Array(data));
    });
    this.socket.addEventListener("close", (event) => this.ended(event));
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** The reservation has another end now. */
  async moveEnd(end) {
    this.frame.dataset.end = end;
    this.warn();
    const found = await fetchPage(location.href);
    const lead = found?.answer.ok && found.page.getElementById("terminal-lead");
    if (lead) replace([lead]);
  }

  show(bytes) {
    this.pause = AGAIN_MS;
    const socket = this.socket;
    this.terminal.write(bytes, () => {
      if (socket !== this.socket) return;
      this.unreported += bytes.length;
      if (this.unreported < REPORT_BYTES || !this.open) return;
      socket.send(JSON.stringify({ shown: this.unreported }));
      this.unreported = 0;
    });
  }

  type(bytes) {
    if (!this.open) return;
    for (let from = 0; from < bytes.length; from += PIECE_BYTES) this.socket.send(bytes.subarray(from, from + PIECE_BYTES));
  }

  sendSize() {
    if (this.open) this.socket.send(JSON.stringify({ size: [this.terminal.cols, this.terminal.rows] }));
  }

  /** Returns false for keys that the page takes: copy of a selection, and the way out. */
  mayType(event) {
    if (event.type !== "keydown" || !event.ctrlKey) return true;
    if (event.shiftKey && event.key === "Enter") {
      (this.again.hidden ? document.querySelector("#terminal .actions button") : this.again)?.focus();
      event.preventDefault();
      return false;
    }
    return !(event.key === "c" && !event.shiftKey && this.terminal.hasSelection());
  }

  async ended({ code, reason }) {
    if (code === SIGNED_OUT || (!reason && code !== NORMAL && await signedOut())) return toLogin();
    const words = code === NORMAL
      ? gettext("The connection was closed by the terminal.")
      : reason || gettext("The connection is lost. Your programs may still run.");
    this.tell(words);
    this.closed = true;
    this.again.hidden = false;
    const lost = LOST.includes(code);
    if (document.activeElement === this.terminal.textarea) (lost ? this.state : this.again).focus();
    if (lost) {
      this.timer = setTimeout(() => this.connect({ byItself: true }), this.pause);
      this.pause = Math.min(MOST_AGAIN_MS, 2 * this.pause);
    }
    return look();
  }

  tell(words) {
    this.state.textContent = words;
  }

  warn() {
    const minutes = Math.ceil((Number(this.frame.dataset.end) - Date.now() / 1000) / 60);
    const due = WARN_MINUTES.find((most) => minutes <= most);
    const words = due === undefined || minutes < 1 ? ""
      : minutes === 1 ? gettext("The reservation ends in less than a minute. Save your work.")
        : gettext("The reservation ends in {minutes} minutes. Save your work.", { minutes });
    if (this.warning.textContent !== words) this.warning.textContent = words;
    this.warning.hidden = !words;
  }
}

/** Shows the present state of the job. A terminal that still runs stays as it is. */
const look = oneAtATime(async () => {
  const found = await fetchPage(location.href);
  const fresh = found?.answer.ok && found.page.getElementById("terminal");
  if (found?.answer.redirected) location.assign(found.answer.url);
  else if (fresh?.querySelector("#terminal-screen")) {
    if (!document.getElementById("terminal-screen")) location.reload();
  } else if (fresh && !document.activeElement?.closest("#terminal input, #terminal select")) replace([fresh]);
});

const frame = document.getElementById("terminal-screen");
const shown = frame && new TerminalPage(frame);
document.addEventListener("jobs-changed", settled(look, SETTLED_MS));
setInterval(() => {
  const page = document.getElementById("terminal");
  const closed = shown?.closed && shown.frame.isConnected;
  if (page && ("changing" in page.dataset || closed) && !document.hidden) look();
}, LOOK_MS);
