// The only module that opens websockets.
//
// connect("/ws/board/", {onJson, onBinary, onState}) keeps one socket alive until
// close(): exponential back-off with jitter, at once when the network is back,
// asleep while the tab is long hidden. onState receives {word, retryInSeconds}:
//   connecting | open | waiting (retryInSeconds counts down) | paused | refused
// The page gets the same as a "live:state" event, which banner.js shows, unless
// the handlers have {quiet: true}: then the page's data does not depend on the socket.
// Close codes: 4401 signed out -> login page; 4403 not allowed -> refused;
// 1012 the web process is replaced -> within a second, and no banner unless that fails;
// anything else -> back-off.

const FIRST_WAIT_SECONDS = 0.5;
const LONGEST_WAIT_SECONDS = 20;
const RESTART_WAIT_SECONDS = 1;
const HIDDEN_PAUSE_SECONDS = 120;
const STEADY_SECONDS = 5;

/** Seconds before attempt n (from 0): doubled each time, bounded, with a random upper half. */
export function backoffSeconds(attempt, random = Math.random) {
  const most = Math.min(FIRST_WAIT_SECONDS * 2 ** attempt, LONGEST_WAIT_SECONDS);
  return most / 2 + (random() * most) / 2;
}

export function toLogin() {
  // A page may give a better address to return to than its own, with the typed text.
  const detail = { next: location.pathname + location.search };
  document.dispatchEvent(new CustomEvent("signed-out", { detail }));
  location.assign(`/login/?${new URLSearchParams({ next: detail.next, ended: "1" })}`);
}

/** Asks the server if the session has ended, since a refused handshake has no reason. */
export async function signedOut() {
  try {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
    return answer.type === "opaqueredirect";
  } catch (error) {
    if (error instanceof TypeError) return false; // no network: the session may be valid
    throw error;
  }
}

/** Opens one websocket, which is not opened again when it closes. */
export function openSocket(path) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}${path}`);
  socket.binaryType = "arraybuffer";
  return socket;
}

class Connection {
  constructor(path, handlers) {
    this.path = path;
    this.handlers = handlers;
    this.attempt = 0;
    this.failed = 0;
    this.closed = false;
    this.socket = null;
    this.word = "";
    document.addEventListener("visibilitychange", () => this.seen());
    window.addEventListener("online", () => this.retryNow());
    document.addEventListener("live:retry", () => this.retryNow());
    this.open();
  }

  tell(word, retryInSeconds = 0) {
    this.word = word;
    const detail = { path: this.path, word, retryInSeconds, failed: this.failed };
    this.handlers.onState?.(detail);
    if (!this.handlers.quiet) document.dispatchEvent(new CustomEvent("live:state", { detail }));
  }

  open() {
    clearTimeout(this.timer);
    this.tell("connecting");
    const socket = openSocket(this.path);
    this.socket = socket;
    this.opened = false;
    socket.addEventListener("open", () => {
      this.opened = true;
      this.failed = 0;
      this.steady = setTimeout(() => { this.attempt = 0; }, STEADY_SECONDS * 1000);
      this.tell("open");
    });
    socket.addEventListener("message", ({ data }) => {
      if (typeof data === "string") this.handlers.onJson?.(JSON.parse(data));
      else this.handlers.onBinary?.(data);
    });
    socket.addEventListener("close", ({ code }) => {
      if (this.socket === socket) this.lost(code);
    });
  }

  async lost(code) {
    this.socket = null;
    clearTimeout(this.steady);
    if (this.closed) return;
    if (code === 4403) { this.tell("refused"); return; }
    if (!this.opened) this.failed++;
    // Ask the server first: a login page that redirects back at once would loop.
    if ((code === 4401 || this.failed >= 2) && (await signedOut())) { toLogin(); return; }
    if (this.closed || this.socket) return;
    if (document.hidden && this.word === "paused") return;
    if (code === 1012) this.resume();
    else this.wait(backoffSeconds(this.attempt++));
  }

  /** Connects to the processes that took over, at a random moment, so that not all do at once. */
  resume() {
    this.tell("connecting");
    this.timer = setTimeout(() => this.open(), RESTART_WAIT_SECONDS * 1000 * Math.random());
  }

  wait(seconds) {
    const dueAt = performance.now() + seconds * 1000;
    const step = () => {
      const leftSeconds = (dueAt - performance.now()) / 1000;
      if (leftSeconds <= 0.05) { this.open(); return; }
      this.tell("waiting", Math.ceil(leftSeconds));
      this.timer = setTimeout(step, Math.min(1000, leftSeconds * 1000));
    };
    step();
  }

  retryNow() {
    if (this.word !== "waiting" && this.word !== "paused") return;
    clearTimeout(this.timer);
    this.open();
  }

  seen() {
    clearTimeout(this.sleep);
    if (!document.hidden) { this.retryNow(); return; }
    this.sleep = setTimeout(() => {
      if (this.closed || this.word === "refused") return;
      clearTimeout(this.timer);
      this.tell("paused");
      const socket = this.socket;
      this.socket = null;
      socket?.close(1000);
    }, HIDDEN_PAUSE_SECONDS * 1000);
  }

  /** Sends an object as JSON. Returns false if the socket is not open. */
  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.sleep);
    this.socket?.close(1000);
    this.socket = null;
  }
}

export function connect(path, handlers) {
  return new Connection(path, handlers);
}
