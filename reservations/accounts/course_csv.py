"""Turn a course's list of students into edits of the tree.

Students are found by login, else by mail address. An unknown student gets a login made
from the first part of the mail address.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from reservations.accounts.csv_table import RowError, SheetRow, too_long
from reservations.accounts.tree.tree_csv import Person, mail_valid
from reservations.accounts.tree.tree_edits import NEW_LOGIN, Edit
from telemetry.protocol.sentences import sentence

COLUMNS = ("user", "name", "mail")
MOST_STUDENTS = 2000
LOGIN_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Course:
    """The values with which a course is created."""

    name: str
    title: str
    parent: str | None
    shares: int
    ends_at: datetime
    quota_gpu_seconds: int | None = None
    """Of the whole course. None: the sum of the members' quotas."""
    member_quota_gpu_seconds: int | None = None
    """Of each student. None: the site's quota."""
    head: str = ""
    """Login of the head. Empty: there is none yet."""


@dataclass(frozen=True, slots=True)
class Student:
    """One row of the list, with the login that it results in."""

    username: str
    name: str
    mail: str
    new: bool
    row: int = 0


@dataclass
class StudentList:
    """The students on the list, or its problems."""

    students: list[Student] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)

    @property
    def new(self) -> int:
        """Return how many students get a new login."""
        return sum(student.new for student in self.students)


def students_of(
    rows: Iterable[SheetRow],
    people: Mapping[int, Person],
    unix_users: Collection[str] = (),
) -> StudentList:
    """Match the rows of a list with known people.

    Args:
        unix_users: names that no new login gets.
    """
    matcher = _Matcher(people, unix_users)
    for row in rows:
        matcher.add(row)
    found = matcher.found
    if len(found.students) > MOST_STUDENTS:
        found.errors.append(
            RowError(
                0,
                "",
                sentence("more than {most} students", most=MOST_STUDENTS),
            )
        )
    if not found.students and not found.errors:
        found.errors.append(RowError(1, "", sentence("nobody is on the list")))
    return found


class _Matcher:
    """Goes through the list and remembers the persons found."""

    def __init__(
        self, people: Mapping[int, Person], unix_users: Collection[str]
    ) -> None:
        self.by_login = {person.username: person for person in people.values()}
        self.by_mail: dict[str, list[Person]] = {}
        for person in people.values():
            if person.mail:
                self.by_mail.setdefault(person.mail.casefold(), []).append(person)
        self.taken = {name.casefold() for name in (*self.by_login, *unix_users)}
        self.seen: dict[str, int] = {}
        self.found = StudentList()

    def add(self, row: SheetRow) -> None:
        """Match one row."""
        wrong = [*too_long(row), *self._row_errors(row)]
        if wrong:
            self.found.errors += wrong
            return
        student = self._student(row)
        if student is None:
            return
        before = self.seen.setdefault(student.username.casefold(), row.number)
        if before != row.number:
            text = sentence("is the same person as in row {before}", before=before)
            self._add_error(row, "user" if row["user"] else "mail", text)
            return
        self.found.students.append(student)

    def _add_error(self, row: SheetRow, column: str, text: str) -> None:
        self.found.errors.append(RowError(row.number, column, text))

    def _row_errors(self, row: SheetRow) -> Iterable[RowError]:
        if not row["user"] and not row["mail"]:
            yield RowError(row.number, "mail", sentence("a login or a mail is needed"))
        login = row["user"]
        if login and login not in self.by_login and not NEW_LOGIN.fullmatch(login):
            yield RowError(row.number, "user", sentence("is not a valid login"))
        if row["mail"] and not mail_valid(row["mail"]):
            yield RowError(row.number, "mail", sentence("is not a valid mail address"))
        if len(row["name"]) > 80:
            yield RowError(row.number, "name", sentence("is longer than 80 characters"))

    def _student(self, row: SheetRow) -> Student | None:
        known = self.by_login.get(row["user"])
        if known is not None:
            other = known.mail and row["mail"].casefold() not in (
                "",
                known.mail.casefold(),
            )
            if other:
                self._add_error(
                    row,
                    "user",
                    sentence("is the login of a person with another mail address"),
                )
                return None
            return _known(known, row)
        if row["mail"]:
            same = self.by_mail.get(row["mail"].casefold(), [])
            if len(same) > 1:
                self._add_error(
                    row, "mail", sentence("belongs to several logins: name the login")
                )
                return None
            if same:
                return _known(same[0], row)
        name = row["user"] or self._unused_login(row["mail"])
        self.taken.add(name.casefold())
        made = Student(name, row["name"], row["mail"], True, row.number)
        # The same mail again is the same person.
        if row["mail"]:
            person = Person(name, row["name"], row["mail"])
            self.by_mail[row["mail"].casefold()] = [person]
        return made

    def _unused_login(self, mail: str) -> str:
        """Return an unused login, made from the first part of a mail address."""
        part = unicodedata.normalize("NFKD", mail.split("@", 1)[0]).lower()
        base = (
            re.sub(r"[^a-z0-9._-]", "", part).strip("._-")[:LOGIN_LENGTH] or "student"
        )
        name, number = base, 1
        while name.casefold() in self.taken:
            number += 1
            name = f"{base}{number}"
        return name


def _known(person: Person, row: SheetRow) -> Student:
    return Student(person.username, person.name, person.mail, False, row.number)


def course_edits(course: Course, students: Iterable[Student]) -> list[Edit]:
    """Return the edits that create a course with its head and its students."""
    account: dict[str, Any] = {
        "name": course.name,
        "title": course.title,
        "parent": course.parent,
        "shares": course.shares,
        "quota_gpu_seconds": course.quota_gpu_seconds,
        "ends_at": course.ends_at,
    }
    edits = [Edit("account", None, None, account)]
    named = False
    for one in students:
        if one.new:
            login = {
                "username": one.username,
                "display_name": one.name,
                "email": one.mail,
            }
            edits.append(Edit("user", None, None, login, one.row))
        head = one.username == course.head
        named = named or head
        fields = {
            "user": one.username,
            "account": course.name,
            "quota_gpu_seconds": course.member_quota_gpu_seconds,
            "is_head": head,
        }
        edits.append(Edit("member", None, None, fields, one.row))
    if course.head and not named:
        fields = {"user": course.head, "account": course.name, "is_head": True}
        edits.append(Edit("member", None, None, fields))
    return edits
