// Passkeys: makes or uses one, and sends the browser's answer with the form.
import { gettext } from "../words.js";

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const withBytes = (list) => (list || []).map((one) => ({ ...one, id: bytes(one.id) }));

// Options with binary fields as the browser takes them. WebAuthn has this as a function, which older browsers lack.
function decoded(options) {
  const found = { ...options, challenge: bytes(options.challenge) };
  if (options.user) found.user = { ...options.user, id: bytes(options.user.id) };
  if (options.excludeCredentials) found.excludeCredentials = withBytes(options.excludeCredentials);
  if (options.allowCredentials) found.allowCredentials = withBytes(options.allowCredentials);
  return found;
}

function encoded(credential) {
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"])
    if (credential.response[name]) response[name] = text(credential.response[name]);
  return { id: credential.id, rawId: text(credential.rawId), type: credential.type, response, clientExtensionResults: credential.getClientExtensionResults() };
}

const WHY = {
  NotAllowedError: () => gettext("Nothing was confirmed. Try again, or use another way."),
  InvalidStateError: () => gettext("This device has a passkey of yours already."),
};

async function send(form) {
  const said = form.querySelector("[data-passkey-error]");
  said.hidden = true;
  const publicKey = decoded(JSON.parse(form.dataset.options));
  try {
    const found = await navigator.credentials[form.dataset.passkey]({ publicKey });
    form.elements.passkey.value = JSON.stringify(encoded(found));
  } catch (error) {
    said.textContent = (WHY[error.name] || (() => gettext("This browser cannot use passkeys here.")))();
    said.hidden = false;
    return;
  }
  form.submit();
}

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-passkey]");
  if (!form) return;
  event.preventDefault();
  send(form);
});
