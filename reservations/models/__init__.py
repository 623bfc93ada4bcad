"""The tables of reservations: people, calendar, ledger, notices, audit log."""

from reservations.models.accounts import Account, ApiToken, Membership, User
from reservations.models.audit_entry import AuditEntry
from reservations.models.calendar import (
    Allocation,
    EarlyReturn,
    LateReturn,
    Reservation,
)
from reservations.models.engine_hold import EngineHold
from reservations.models.favourite import Favourite
from reservations.models.identities import (
    UNIX_LOGIN_UNKNOWN,
    ClaimGrant,
    ClaimMapping,
    ClaimRole,
    Identity,
    UsedAssertion,
)
from reservations.models.ledger_entry import KeptUsage, LedgerEntry
from reservations.models.links import GroupLink, WallLink
from reservations.models.notice import Delivery, GroupChat, Notice, NoticeSettings
from reservations.models.openid_clients import (
    OpenidClient,
    OpenidCode,
    OpenidConsent,
    OpenidSubject,
    OpenidToken,
)
from reservations.models.pool_rules import Closure, PoolQuota, PoolRule
from reservations.models.reports import (
    MonthUse,
    PolicyReplay,
    RefusedDemand,
    RefusedRequest,
    RolledMonth,
)
from reservations.models.request_key import RequestKey
from reservations.models.second_factor import RecoveryCode, SecondFactor
from reservations.models.sharing import (
    CalendarFeed,
    CoUser,
    Occurrence,
    Offer,
    Series,
)
from reservations.models.sign_up import SignUp, SignUpDomain
from reservations.models.site_policy import SitePolicy
from reservations.models.ssh_key import SshKey
from reservations.models.tree_change import Invitation, TreeChange, TreeChangeRow
from reservations.models.voucher import Voucher
from reservations.models.waiting_requests import WaitingRequest, WaitlistLook

__all__ = [
    "UNIX_LOGIN_UNKNOWN",
    "Account",
    "Allocation",
    "ApiToken",
    "AuditEntry",
    "CalendarFeed",
    "ClaimGrant",
    "ClaimMapping",
    "ClaimRole",
    "Closure",
    "CoUser",
    "Delivery",
    "EarlyReturn",
    "EngineHold",
    "Favourite",
    "GroupChat",
    "GroupLink",
    "Identity",
    "Invitation",
    "KeptUsage",
    "LateReturn",
    "LedgerEntry",
    "Membership",
    "MonthUse",
    "Notice",
    "NoticeSettings",
    "Occurrence",
    "Offer",
    "OpenidClient",
    "OpenidCode",
    "OpenidConsent",
    "OpenidSubject",
    "OpenidToken",
    "PolicyReplay",
    "PoolQuota",
    "PoolRule",
    "RecoveryCode",
    "RefusedDemand",
    "RefusedRequest",
    "RequestKey",
    "Reservation",
    "RolledMonth",
    "SecondFactor",
    "Series",
    "SignUp",
    "SignUpDomain",
    "SitePolicy",
    "SshKey",
    "TreeChange",
    "TreeChangeRow",
    "UsedAssertion",
    "User",
    "Voucher",
    "WaitingRequest",
    "WaitlistLook",
    "WallLink",
]
