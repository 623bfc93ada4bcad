"""The test database: migrated once, then copied for every run.

Django renders the models again for each operation of a migration. That takes four
seconds of CPU, and the statements themselves take a fifth of a second.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from django.db import connection
from django.test.utils import setup_databases, teardown_databases

from tests.migrated import keep_sqlite, sqlite_file


@contextlib.contextmanager
def migrated_database(cache: Path) -> Iterator[None]:
    """Provide a test database while the context is open.

    On SQLite it is a copy of the file in the cache folder, if there is one of these
    migrations. Otherwise it is migrated, and a copy goes into the cache. ``migrate``
    runs in both cases, and finds nothing to do in a copy.
    """
    sqlite = connection.vendor == "sqlite"
    kept = sqlite_file(cache)
    copied = False
    if sqlite:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(kept, connection.settings_dict["TEST"]["NAME"])
            copied = True
    made = setup_databases(verbosity=0, interactive=False, keepdb=copied)
    if sqlite and not copied:
        connection.ensure_connection()
        keep_sqlite(connection.connection, kept)
    yield
    teardown_databases(made, verbosity=0)
