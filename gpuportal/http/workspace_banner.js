// The warning before the end of a reservation, in the page of a workspace's program. The
// portal adds this script to the page. It imports nothing and changes nothing but its own bar.
(() => {
  const LOOK_MS = 15000;
  let bar = null;
  let closed = null;

  function remove() {
    bar?.remove();
    bar = null;
  }

  function show(told) {
    if (!told.text || told.step === closed) return remove();
    closed = null;
    if (!bar?.isConnected) bar = made(told);
    const words = bar.firstElementChild;
    if (words.textContent !== told.text) words.textContent = told.text;
    bar.dataset.step = told.step;
  }

  function made(told) {
    const box = document.createElement("div");
    box.setAttribute("role", "alert");
    box.id = "gpuportal-end";
    box.style.cssText = "position:fixed;z-index:2147483647;top:8px;left:50%;transform:translateX(-50%);"
      + "display:flex;gap:12px;align-items:center;box-sizing:border-box;width:max-content;max-width:94vw;padding:10px 14px;"
      + "border:1px solid #8a5a00;border-radius:8px;background:#fff3d6;color:#4a3000;font:14px/1.4 system-ui,sans-serif;"
      + "box-shadow:0 4px 16px rgba(0,0,0,.25)";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = told.close;
    button.style.cssText = "flex:none;min-height:32px;padding:4px 12px;border:1px solid #8a5a00;border-radius:6px;"
      + "background:transparent;color:inherit;font:inherit;cursor:pointer";
    button.addEventListener("click", () => {
      closed = Number(bar?.dataset.step);
      remove();
    });
    box.append(document.createElement("span"), button);
    document.body.append(box);
    return box;
  }

  async function look() {
    try {
      const answer = await fetch("/.gpuportal/end.json", { cache: "no-store" });
      if (answer.ok) show(await answer.json());
    } catch {
      // The portal is away. The next look follows.
    }
  }

  function begin() {
    look();
    setInterval(look, LOOK_MS);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
