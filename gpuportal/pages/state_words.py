"""Labels of states: the words that pages show beside an icon and a colour."""

from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

WORDS = frozenset(
    {
        # Of a Reservation.
        *(noop("confirmed"), noop("active"), noop("ended"), noop("released")),
        *(noop("cancelled"), noop("displaced"), noop("refunded")),
        # Of a Job, a proposed move, a refined plan.
        *(noop("queued"), noop("starting"), noop("running"), noop("moving")),
        *(noop("stopping"), noop("done"), noop("failed"), noop("stopped")),
        *(noop("lost"), noop("waiting"), noop("refused"), noop("unknown")),
        *(noop("ready"), noop("loading"), noop("stays"), noop("proposed")),
        *(noop("accepted"), noop("moved"), noop("declined"), noop("withdrawn")),
        *(noop("open"), noop("expired"), noop("firm"), noop("flex")),
        # Of an Alert.
        *(noop("closed"), noop("snoozed"), noop("acknowledged"), noop("all")),
        *(noop("critical"), noop("warning"), noop("info")),
        # Of a node without job isolation; the other levels are names.
        noop("none"),
        # Of a node's device gate.
        *(noop("gated"), noop("watch"), noop("pending"), noop("unavailable")),
    }
)


def state_word(word: str) -> str:
    """Return a state in the reader's language. An unknown one is returned unchanged."""
    key = word.lower()
    if key not in WORDS:
        return word
    found = gettext(key)
    return capfirst(found) if word[:1].isupper() else found
