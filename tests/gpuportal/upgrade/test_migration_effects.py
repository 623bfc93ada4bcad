"""What each operation of a migration takes away from the release that runs."""

import pytest
from django.db import migrations, models
from django.db.migrations.state import ModelState, ProjectState

from gpuportal.upgrade.migration_effects import (
    EffectKind,
    contract_since,
    effects_of,
    tables_made,
)

pytestmark = pytest.mark.pure
TEXT = models.CharField(max_length=40)


def before() -> ProjectState:
    """Return a project with one table, ``lab_gpu``."""
    state = ProjectState()
    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("name", TEXT),
        ("note", models.CharField(max_length=40, null=True)),
        ("kept", models.CharField(max_length=9, db_default="")),
        ("owners", models.ManyToManyField("lab.Gpu")),
    ]
    state.add_model(ModelState("lab", "Gpu", fields))
    fields = [("id", models.BigAutoField(primary_key=True))]
    state.add_model(ModelState("lab", "Rack", fields, {"db_table": "racks"}))
    return state


def effects(*operations, remakes: bool = False) -> list[tuple[str, str]]:
    """Return the effects of a migration with these operations."""
    migration = migrations.Migration("0009_next", "lab")
    migration.operations = list(operations)
    state = before()
    found = effects_of(migration, state, remakes_tables=remakes)
    assert set(state.models) == set(before().models), "the state was changed"
    return [(one.kind.value, one.text) for one in found]


ADDED = models.BooleanField(default=True)
COUNT = models.IntegerField()
CONTRACTS = {
    "drops the table lab_gpu": migrations.DeleteModel("Gpu"),
    "renames the table lab_gpu": migrations.RenameModel("Gpu", "Card"),
    "drops lab_gpu.name": migrations.RemoveField("gpu", "name"),
    "renames lab_gpu.name to label": migrations.RenameField("gpu", "name", "label"),
    "adds lab_gpu.on, which is NOT NULL without a db_default": migrations.AddField(
        "gpu", "on", ADDED
    ),
    "forbids NULL in lab_gpu.note": migrations.AlterField("gpu", "note", TEXT),
    "drops the default of lab_gpu.kept": migrations.AlterField(
        "gpu", "kept", models.CharField(max_length=9)
    ),
    "changes the type of lab_gpu.name": migrations.AlterField("gpu", "name", COUNT),
    "renames lab_gpu.name": migrations.AlterField(
        "gpu", "name", models.CharField(max_length=40, db_column="label")
    ),
    "forbids equal values in lab_gpu.name": migrations.AlterField(
        "gpu", "name", models.CharField(max_length=40, unique=True)
    ),
}


@pytest.mark.parametrize("text", CONTRACTS)
def test_what_the_running_release_loses_is_a_contract_step(text):
    assert ("contract", text) in effects(CONTRACTS[text])
    hidden = migrations.SeparateDatabaseAndState([CONTRACTS[text]])
    assert ("contract", text) in effects(hidden)


def test_a_shorter_text_loses_too():
    shorter = models.CharField(max_length=39)
    found = effects(migrations.AlterField("gpu", "name", shorter))
    assert found[0] == ("contract", "changes the type of lab_gpu.name")


def test_the_same_table_under_another_name_of_the_model_loses_nothing():
    moved = migrations.AlterModelTable("rack", "shelves")
    assert effects(moved) == [("contract", "renames the table racks")]
    assert effects(migrations.AlterModelTable("gpu", "lab_gpu")) == []
    assert effects(migrations.RenameModel("Rack", "Shelf")) == []


def test_what_adds_is_no_contract_step():
    new = migrations.CreateModel("Fan", [("id", models.BigAutoField(primary_key=True))])
    assert (
        effects(
            new,
            migrations.AddField("gpu", "a", models.BooleanField(db_default=True)),
            migrations.AddField("gpu", "b", models.IntegerField(null=True)),
            migrations.AddField("gpu", "c", models.ManyToManyField("lab.Rack")),
            # Nobody but this migration knows the new table.
            migrations.AddField("fan", "speed", COUNT),
            migrations.RemoveField("fan", "speed"),
            migrations.AlterField("gpu", "name", models.CharField(max_length=60)),
            migrations.AlterModelOptions("gpu", {"ordering": ["name"]}),
        )
        == []
    )
    migration = migrations.Migration("0009_next", "lab")
    migration.operations = [new]
    assert tables_made(migration) == {"lab_fan"}


def test_what_takes_time_is_said():
    index = models.Index(fields=["name"], name="by_name")
    rule = models.CheckConstraint(condition=models.Q(name__gt=""), name="named")
    assert effects(migrations.AddIndex("gpu", index)) == [
        ("lock", "makes an index of lab_gpu")
    ]
    assert effects(migrations.AddConstraint("gpu", rule)) == [
        ("lock", "checks every row of lab_gpu")
    ]
    moved = migrations.RunPython(migrations.RunPython.noop)
    assert effects(moved) == [("slow", "changes rows by its own code")]
    longer = migrations.AlterField("gpu", "name", models.CharField(max_length=60))
    assert effects(longer, remakes=True) == [("slow", "rewrites lab_gpu")]


def test_an_operation_of_an_unknown_kind_counts_as_a_contract_step():
    class Odd(migrations.operations.base.Operation):
        def state_forwards(self, app_label, state):
            """Change nothing."""

    (found,) = effects(Odd())
    assert found[0] == EffectKind.CONTRACT


def test_a_contract_step_names_the_release_that_stopped_using_it():
    class Marked(migrations.Migration):
        contract_since = "0.2.0"

    assert contract_since(Marked("0009_next", "lab")) == "0.2.0"
    assert contract_since(migrations.Migration("0009_next", "lab")) == ""
