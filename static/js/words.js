// Sentences in the language of the page. The catalogue is a separate script, which
// base.html loads before all modules if the page is not in English.
//
//   gettext("{who} until {time}", { who, time })
//   ngettext("{n} GPU", "{n} GPUs", n)            n is filled in, too
//
// Each text is written out, because makemessages reads it here.

const page = globalThis.document?.documentElement;
const { words = {}, plural = (n) => Number(n !== 1) } = globalThis.catalogue ?? {};

/** Code of the page's language: "en", "de". */
export const language = page?.lang || "en";

/** The locale for dates: the page's language. English is that of the United Kingdom. */
export const locale = language === "en" ? "en-GB" : language;

/** Replace names in braces by values. A name without a value stays. */
const filled = (text, values) =>
  text.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? String(values[name]) : whole));

/** A sentence in the page's language. */
export const gettext = (text, values = {}) => filled(words[text] ?? text, values);

/** A word that needs a context to be translated. */
export const pgettext = (context, text, values = {}) => filled(words[`${context}\u0004${text}`] ?? text, values);

/** A sentence about n things. */
export function ngettext(one, many, n, values = {}) {
  const form = words[one]?.[plural(n)] ?? (n === 1 ? one : many);
  return filled(form, { n, ...values });
}
