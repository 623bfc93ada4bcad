"""The machine's own PAM, with a service of the test: ``pam_start_confdir(3)``."""

import ctypes
import ctypes.util
from pathlib import Path

SUCCESS = 0
_TEXTS = (3, 4)
"""PAM_ERROR_MSG and PAM_TEXT_INFO."""


class _Message(ctypes.Structure):
    _fields_ = [("style", ctypes.c_int), ("text", ctypes.c_char_p)]


class _Response(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("code", ctypes.c_int)]


_Converse = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(_Message)),
    ctypes.POINTER(ctypes.POINTER(_Response)),
    ctypes.c_void_p,
)


class _Conversation(ctypes.Structure):
    _fields_ = [("converse", _Converse), ("data", ctypes.c_void_p)]


def account_step(folder: Path, lines: str, user: str) -> tuple[int, str]:
    """Run the step *account* of a service. Return PAM's status and what it said.

    Args:
        folder: where the service's file is written.
        lines: of the service, as in /etc/pam.d.
        user: name of the user who logs in.
    """
    (folder / "portal-test").write_text(lines)
    library = ctypes.CDLL(ctypes.util.find_library("pam"))
    memory = ctypes.CDLL(ctypes.util.find_library("c"))
    memory.calloc.restype = ctypes.c_void_p
    said: list[str] = []

    @_Converse
    def converse(count, messages, responses, _data):  # type: ignore[no-untyped-def]
        for number in range(count):
            one = messages[number].contents
            if one.style in _TEXTS:
                said.append((one.text or b"").decode())
        # PAM frees it.
        made = memory.calloc(count, ctypes.sizeof(_Response))
        responses[0] = ctypes.cast(made, ctypes.POINTER(_Response))
        return SUCCESS

    handle = ctypes.c_void_p()
    conversation = _Conversation(converse, None)
    started = library.pam_start_confdir(
        b"portal-test",
        user.encode(),
        ctypes.byref(conversation),
        str(folder).encode(),
        ctypes.byref(handle),
    )
    assert started == SUCCESS, started
    status = library.pam_acct_mgmt(handle, 0)
    library.pam_end(handle, status)
    return status, "\n".join(said)
