"""One mail to one User, through the site's SMTP server."""

from smtplib import SMTPException, SMTPRecipientsRefused

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from telemetry.protocol.sentences import sentence

TIMEOUT_SECONDS = 10


class MailFailed(Exception):
    """The server did not accept it. ``final``: it never will."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        self.why = why
        self.final = final
        super().__init__(why)


def configured() -> bool:
    """Return whether the site has a mail server (EMAIL_URL, docs/operations.md)."""
    return bool(settings.MAIL_CONFIGURED)


def send(
    *, to: str, subject: str, text: str, message_id: str, unsubscribe: str = ""
) -> None:
    """Send one mail. Return once the server has accepted it.

    Args:
        message_id: the same for every attempt of the same message, so that a mail store
            which got it twice shows it once (RFC 5322 section 3.6.4).
        unsubscribe: an address that accepts a POST (RFC 8058).

    Raises:
        MailFailed: it was not accepted.
    """
    host = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].rstrip(">") or "localhost"
    headers = {
        "Message-ID": f"<{message_id}@{host}>",
        # No automatic holiday reply answers to it (RFC 3834).
        "Auto-Submitted": "auto-generated",
    }
    if unsubscribe:
        headers["List-Unsubscribe"] = f"<{unsubscribe}>"
        headers["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    connection = get_connection(timeout=TIMEOUT_SECONDS)
    mail = EmailMessage(
        # A header of two lines is refused as an attack, but a sentence may have two.
        subject=" ".join(subject.split())[:160],
        body=text,
        to=[to],
        headers=headers,
        connection=connection,
    )
    try:
        mail.send()
    except SMTPRecipientsRefused as error:
        code = next(iter(error.recipients.values()))[0]
        final = 500 <= code < 600
        raise MailFailed(
            sentence("the address was refused ({code})", code=code), final=final
        ) from error
    except (SMTPException, OSError) as error:
        raise MailFailed(str(error)[:200] or type(error).__name__) from error
