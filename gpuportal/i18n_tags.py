"""Django's library ``i18n`` with a quicker ``{% translate %}``.

A page has dozens of bare sentences, and catalogues do not change while a process runs.
So each place in a template caches its text by language. Django's tag looks each one up
for every page, which takes ten times as long. ``install`` replaces it.
"""

from django.template import Node
from django.template.base import Parser, Token
from django.template.context import Context
from django.templatetags import i18n
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language


class WordsNode(Node):
    """One sentence of a template, without a variable."""

    def __init__(self, slow: i18n.TranslateNode) -> None:
        self.slow = slow
        self.texts: dict[str | None, SafeString] = {}

    def render(self, context: Context) -> SafeString:
        """Return the sentence in the active language."""
        language = get_language()
        found = self.texts.get(language)
        if found is None:
            # A literal of a template is safe, so the context does not matter.
            found = mark_safe(self.slow.render(context))
            self.texts[language] = found
        return found


def translate(parser: Parser, token: Token) -> Node:
    """Compile as Django does, but cache a bare literal by language."""
    node = i18n.do_translate(parser, token)
    literal = isinstance(node.filter_expression.var.literal, str)
    bare = literal and not node.filter_expression.filters
    if bare and not (node.asvar or node.message_context or node.noop):
        return WordsNode(node)
    return node


def install() -> None:
    """Replace ``translate`` and its old name in Django's library."""
    i18n.register.tags |= {"translate": translate, "trans": translate}
