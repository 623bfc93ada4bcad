"""Words that the database stores and pages show, marked for translation.

Templates print them with ``{% translate row.state %}``: the stored word is the msgid.
"""

from django.utils.translation import gettext_noop

WORDS = (
    # Kinds of Reservations.
    gettext_noop("firm"),
    gettext_noop("flex"),
    # States of Reservations, waiting requests, Offers, Series and their days.
    gettext_noop("confirmed"),
    gettext_noop("active"),
    gettext_noop("ended"),
    gettext_noop("released"),
    gettext_noop("cancelled"),
    gettext_noop("displaced"),
    gettext_noop("refunded"),
    gettext_noop("waiting"),
    gettext_noop("placed"),
    gettext_noop("declined"),
    gettext_noop("expired"),
    gettext_noop("open"),
    gettext_noop("accepted"),
    gettext_noop("withdrawn"),
    gettext_noop("running"),
    gettext_noop("booked"),
    gettext_noop("refused"),
    gettext_noop("all"),
    # How a waiting request ended, as a choice.
    gettext_noop("Placed"),
    gettext_noop("Declined"),
    gettext_noop("Cancelled"),
    gettext_noop("Expired"),
    # States of replays and of deliveries.
    gettext_noop("done"),
    gettext_noop("failed"),
    gettext_noop("pending"),
    gettext_noop("sending"),
    gettext_noop("sent"),
    gettext_noop("dropped"),
    gettext_noop("mail"),
    # Rows of the ledger.
    gettext_noop("Hold"),
    gettext_noop("Release"),
    gettext_noop("Charge"),
    gettext_noop("Imported"),
    # Changes of accounts.
    gettext_noop("edit"),
    gettext_noop("import"),
    gettext_noop("course"),
    gettext_noop("archive"),
    gettext_noop("expiry"),
    gettext_noop("desk"),
    gettext_noop("undo"),
    # Kinds of closures within a sentence.
    gettext_noop("maintenance"),
    gettext_noop("blackout"),
    gettext_noop("teaching"),
    # Reasons that a button gives.
    gettext_noop("limit lifted"),
)
