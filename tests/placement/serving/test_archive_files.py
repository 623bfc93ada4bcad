"""Models whose weights are in other files: what is stored, what is refused, and why."""

import io
import json
import stat
import tarfile
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement.jobs import model_files
from placement.planner.sandbox import archive as unpack
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.onnx_external_data import (
    MOST_PARTS,
    OWN_NAME,
    checked_name,
)
from placement.serving import model_store
from tests.placement.lab import signed_in
from tests.placement.serving.archives import tarred, zipped
from tests.placement.serving.networks import mlp_bytes, outside_files

pytestmark = pytest.mark.django_db(transaction=True)
FLAT = outside_files(mlp_bytes(), location="w.data")
LINK = stat.S_IFLNK | 0o777
DEEP = outside_files(mlp_bytes())


def store(user, data, name="net.zip", **beside):
    more = [SimpleUploadedFile(one, body) for one, body in beside.items()]
    first = SimpleUploadedFile(name, data)
    return model_store.store_file(
        user=user, upload=first, beside=more, now=timezone.now()
    )


def test_a_model_with_its_weights_beside_it_is_kept_whole(alice):
    model, weights = FLAT.values()
    page = signed_in(alice).post(
        "/api/v1/serve/files",
        {
            "file": SimpleUploadedFile("net.onnx", model),
            "beside": [SimpleUploadedFile("w.data", weights)],
        },
    )
    assert page.status_code == 201, page.content
    row = alice.model_files.get()
    assert [part["name"] for part in row.parts] == [OWN_NAME, "w.data"]
    assert row.size_bytes == page.json()["size_bytes"] == len(model) + len(weights)
    assert row.weight_bytes == len(weights)
    assert model_files.path_of(row, 1).read_bytes() == weights
    assert store(alice, model, "net.onnx", **{"w.data": weights}).pk == row.pk

    archives = {
        "net.zip": zipped({**DEEP, "README.md": b"hello"}, "export/"),
        "net.tar": tarred({f"./{name}": data for name, data in DEEP.items()}),
        "net.tgz": tarred(DEEP, packed=True),
    }
    kept = {store(alice, data, name).pk for name, data in archives.items()}
    assert len(kept) == 1, "the same model, however it was packed"
    deep = alice.model_files.get(pk=kept.pop())
    assert [part["name"] for part in deep.parts] == [OWN_NAME, "weights/w.data"]
    model_store.drop_file(user=alice, file_id=deep.pk, now=timezone.now())
    model_store.drop_file(user=alice, file_id=row.pk, now=timezone.now())
    assert list(model_files.folder().iterdir()) == []
    # A whole file in an archive is a whole file.
    assert store(alice, zipped({"m.onnx": mlp_bytes()})).parts == []


def test_what_is_missing_or_cut_off_is_refused_with_the_reason(alice):
    model, weights = FLAT.values()
    two = zipped({"a/n.onnx": model, "w.data": weights})
    climbing = outside_files(mlp_bytes(), location="../w.data")
    refused = [
        (r"other files \(w\.data\)", "net.onnx", model, {}),
        ("has 9 bytes, the model reads", "net.onnx", model, {"w.data": weights[:9]}),
        ("not a path inside", "net.onnx", climbing["net.onnx"], {"w.data": weights}),
        ("w.data is not a file", "net.zip", zipped(FLAT, modes={"w.data": LINK}), {}),
        ("not a complete .zip or .tar", "net.tar", b"x" * 2000, {}),
        ("holds 2 files that end in", "net.zip", zipped({**FLAT, "b.onnx": model}), {}),
        ("holds all files", "net.zip", two, {"w.data": weights}),
        ("lie in other files", "n.zip", two, {}),
    ]
    for words, name, data, beside in refused:
        with pytest.raises(SpecInvalid, match=words):
            store(alice, data, name, **beside)
    assert list(model_files.folder().iterdir()) == []
    assert not alice.model_files.exists()


def test_hostile_archives_are_refused_with_the_reason(
    capsysbinary, tmp_path, monkeypatch
):
    """As the child does it, in this process: its limits would stay."""
    model, weights = FLAT.values()
    monkeypatch.setattr(unpack, "limit", lambda **_: None)
    twice = io.BytesIO(zipped(FLAT))
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("w.data", weights)
    many = {f"{index}.data": b"" for index in range(MOST_PARTS)}
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
    refused = [
        ("not a path inside", zipped({"../a.onnx": model})),
        ("not a path inside", tarred({"/etc/a.onnx": model})),
        ("holds w.data twice", twice.getvalue()),
        ("w.data is not a file", zipped(FLAT, modes={"w.data": LINK})),
        *(
            ("not a complete file", tarred(FLAT, kinds={"w.data": one}))
            for one in kinds
        ),
        ("more than 512 files", zipped({**FLAT, **many})),
        ("not a complete .zip or .tar", zipped(FLAT)[:-30]),
        ("not a complete .zip or .tar", tarred(FLAT, packed=True)[:-40]),
    ]
    for words, data in refused:
        path = tmp_path / "archive"
        path.write_bytes(data)
        assert unpack.main([str(path)]) == unpack.EXIT_REFUSED
        assert words in json.loads(capsysbinary.readouterr().err)["detail"]


def test_no_more_comes_out_of_a_bomb_than_may(monkeypatch):
    monkeypatch.setattr(unpack, "MOST_BYTES", 2**20)
    sizes = []

    class Counted(io.BytesIO):
        def write(self, data):
            sizes.append(len(data))
            return super().write(data)

    bomb = zipped({"a": bytes(900_000), "b": bytes(900_000)})
    with pytest.raises(unpack.FileRefused, match="more than 1,048,576 bytes"):
        unpack.tell(unpack._of_zip(io.BytesIO(bomb)), Counted())
    assert sum(sizes) < 1_000_000
    packed = tarred({"a": bytes(2**21)}, packed=True)
    with pytest.raises(unpack.FileRefused, match="more than"):
        unpack.tell(unpack._of_tar(io.BytesIO(packed)), Counted())


@pytest.mark.once
@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "..",
        "a/../b",
        "a//b",
        "a\\b",
        "C:a",
        "a\0",
        "a\n",
        "a/" * 9 + "b",
        "x" * 256,
        None,
        7,
        ".",
        "./",
    ],
)
def test_names_that_leave_the_folder_are_none(name):
    with pytest.raises(SpecInvalid):
        checked_name(name)
    assert json.dumps(checked_name("ünï.data"))
