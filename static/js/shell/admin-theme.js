// Runs before the admin paints: the theme is the site's cookie, not the admin's own
// switch. A classic script, because modules wait and the page would flash.
(() => {
  const theme = /(?:^|; )theme=(light|dark)(?:;|$)/.exec(document.cookie);
  if (theme) document.documentElement.dataset.theme = theme[1];
})();
