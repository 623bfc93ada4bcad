// Runs before the admin paints: the site's cookie sets the theme, not the admin's
// switch. It is a classic script, because modules run later and the page would flash.
(() => {
  const theme = /(?:^|; )theme=(light|dark)(?:;|$)/.exec(document.cookie);
  if (theme) document.documentElement.dataset.theme = theme[1];
})();
