"""The special words of the interface, each with one plain explanation.

Pages use it through ``{% term "flex" %}``, scripts through ``static/js/terms.js`` and
``/help/terms.json``. The help page prints all of it.
"""

from dataclasses import dataclass

from django.utils.text import slugify
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from telemetry.models import Pool


@dataclass(frozen=True)
class Term:
    """One word and its explanation."""

    word: str
    text: str
    """One to three sentences without markup."""

    @property
    def name(self) -> str:
        """Return the word in the reader's language."""
        return gettext(self.word)

    @property
    def explained(self) -> str:
        """Return the explanation in the reader's language."""
        return gettext(self.text)

    @property
    def key(self) -> str:
        """Return the name that ``{% term %}`` and the help page's anchor use."""
        return slugify(self.word)


_TERMS = (
    Term(
        noop("alert"),
        noop(
            "Something is wrong with a GPU: another person uses it, it is booked but "
            "idle, or the card fails. The bell shows the alerts that concern you."
        ),
    ),
    Term(
        noop("blackout"),
        noop("A time that the lab keeps free of bookings, for example for an exam."),
    ),
    Term(
        noop("check-in"),
        noop(
            "Telling the portal that you use your booking. Starting a job or a "
            "process on the GPU checks you in. You can also press “I’m here” on the "
            "booking."
        ),
    ),
    Term(
        noop("class"),
        noop("All GPUs of one model, for example A100 80 GB. They cost the same."),
    ),
    Term(
        noop("credits"),
        noop(
            "What GPU time costs. 1 credit is 1 GPU-hour times the weight of the GPU’s "
            "class, so faster GPUs cost more."
        ),
    ),
    Term(
        noop("displaced"),
        noop(
            "Someone who has used less than their share took over a flex booking. The "
            "previous holder gets every credit back and returns to the waitlist."
        ),
    ),
    Term(
        noop("fair share"),
        noop(
            "The rule that decides who is served first: people who have used less than "
            "their share of the GPUs come before people who have used more."
        ),
    ),
    Term(
        noop("firm"),
        noop(
            "Guaranteed. A booking within your quota is firm, and no other user can "
            "take it."
        ),
    ),
    Term(
        noop("flex"),
        noop(
            "Free time that may be taken. You book it beyond your quota. Until it "
            "becomes safe, someone who has used less GPU time can take it, and you "
            "get all credits back."
        ),
    ),
    Term(
        noop("frozen"),
        noop(
            "Now safe. Shortly before its start a flex booking freezes, and from then "
            "on nobody can take it."
        ),
    ),
    Term(
        noop("GPU-hour"),
        noop(
            "One GPU for one hour, whatever its class. Two GPUs for four hours are 8 "
            "GPU-hours."
        ),
    ),
    Term(
        noop("grid"),
        noop(
            "The times at which bookings can start and end, for example every full "
            "hour."
        ),
    ),
    Term(
        noop("half-life"),
        noop(
            "How fast past use is forgotten. After one half-life it counts half, "
            "after two a quarter."
        ),
    ),
    Term(
        noop("horizon"),
        noop(
            "How far ahead you can book. It is longer for firm than for flex bookings."
        ),
    ),
    Term(
        noop("idle"),
        noop(
            "Booked, but almost no work runs. After a warning the portal gives an idle "
            "booking back to everybody."
        ),
    ),
    Term(
        noop("intruder"),
        noop("A process of one person on a GPU that another person has booked."),
    ),
    Term(
        noop("isolation"),
        noop(
            "Jobs run under a Unix account of their own and cannot touch other "
            "people’s files or processes. Own scripts need a node with isolation."
        ),
    ),
    Term(
        noop("ledger"),
        noop("The list of all your costs and refunds, like a bank statement."),
    ),
    Term(
        noop("level"),
        noop(
            "Your share divided by your part of the use. Above 1 you have used less "
            "than your share, below 1 more."
        ),
    ),
    Term(
        noop("no-show"),
        noop(
            "A booking that nobody used. It is released shortly after its start, and "
            "its credits are lost. Several no-shows in a month shorten how far ahead "
            "you can book."
        ),
    ),
    Term(
        noop("offer"),
        noop(
            "A booking that one person hands to another, or swaps. It changes hands "
            "when the other person accepts."
        ),
    ),
    Term(
        noop("overstay"),
        noop(
            "Staying on a GPU after the end of a booking because nobody else needs "
            "it. You pay for it, and it ends soon after someone books the GPU."
        ),
    ),
    Term(
        noop("peak hours"),
        noop("Busy hours in which a GPU costs more credits."),
    ),
    Term(
        noop("planned start"),
        noop(
            "The slot that the portal holds for a request on the waitlist. Only a firm "
            "booking can delay it."
        ),
    ),
    Term(
        noop("pool"),
        noop("GPUs that are booked alike: one class, one price, the same rules."),
    ),
    Term(
        noop("quota"),
        noop(
            "The credits that you can book as firm in any 7 days. Beyond it you can "
            "book flex."
        ),
    ),
    Term(
        noop("rank"),
        noop(
            "Your place in the order of fair share. The 1st is served first. It falls "
            "when you book and rises again as time passes."
        ),
    ),
    Term(
        noop("series"),
        noop(
            "A booking that repeats, for example every Monday. Each day is booked "
            "automatically as soon as it is within the booking horizon."
        ),
    ),
    Term(
        noop("share"),
        noop(
            "The part of the GPUs that your group and you are meant to get. The admin "
            "sets it."
        ),
    ),
    Term(
        noop("unclean"),
        noop(
            "At the start of a booking another person’s process was still on the GPU. "
            "You get your credits back."
        ),
    ),
    Term(
        noop("voucher"),
        noop(
            "A right to one guaranteed booking at any time. You get it when the lab "
            "has to cancel a booking of yours."
        ),
    ),
    Term(
        noop("waitlist"),
        noop(
            "Requests that wait for GPUs. The portal books the first slot that fits, "
            "in order of fair share."
        ),
    ),
    Term(
        noop("weight"),
        noop("The price of a GPU class in credits for one GPU-hour."),
    ),
)

TERMS = {term.key: term for term in _TERMS}
"""By key, in alphabetical order."""


def prices() -> list[tuple[str, int]]:
    """Return (class, credits for one GPU-hour) of every pool, dearest first."""
    rows = Pool.objects.order_by("-weight", "gpu_class")
    return list(rows.values_list("gpu_class", "weight"))


def explanation(term: Term) -> str:
    """Return a Term's text, for credits with the prices of this site."""
    if term.key not in {"credits", "weight"}:
        return term.explained
    found = prices()
    if not found:
        return term.explained
    gpu_class, weight = found[0]
    listed = ", ".join(f"{name} {price}" for name, price in found)
    return gettext(
        "%(text)s Here 1 GPU-hour costs: %(listed)s. Example: 8 "
        "GPU-hours × %(weight)s (%(gpu_class)s) = %(credits)s credits."
    ) % {
        "text": term.explained,
        "listed": listed,
        "weight": weight,
        "gpu_class": gpu_class,
        "credits": 8 * weight,
    }
