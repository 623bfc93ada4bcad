"""Curves from the output of training libraries, without any change to the code."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.rules.training_output import TrainingOutput


def curve(text: str) -> list[dict[str, float]]:
    """Read a log as the portal does: also what bars redraw."""
    output = TrainingOutput()
    rows = [output.read(line) for line in text.splitlines()]
    return [row for row in rows if row is not None]


TRAINER = (
    "  0%|          | 0/40 [00:00<?, ?it/s]\r"
    " 25%|##        | 10/40 [00:01<00:03,  9.9it/s]"
    "{'loss': '4.173', 'grad_norm': '1.398', 'learning_rate': '5e-05', "
    "'epoch': '0.5'}\n"
    " 50%|#####     | 20/40 [00:02<00:02,  9.9it/s]\r"
    "                          {'loss': 3.5, 'epoch': 1.0}\n"
    "{'eval_loss': '3.25', 'eval_runtime': '0.5', 'epoch': '1'}\n"
    "{'train_runtime': '4.1', 'train_samples_per_second': '9', 'epoch': '1'}\n"
)
"""transformers 5 writes numbers as text, 4 as numbers."""


def test_the_trainers_dictionaries_have_the_step_of_the_bar():
    assert curve(TRAINER) == [
        {"step": 10, "loss": 4.173, "grad_norm": 1.398, "learning_rate": 5e-5}
        | {"epoch": 0.5},
        {"step": 20, "loss": 3.5, "epoch": 1},
        {"step": 20, "eval_loss": 3.25},
    ]


def test_an_evaluation_keeps_its_metrics_and_not_its_speed():
    text = "{'eval_loss': '0.6', 'eval_accuracy': '0.5', 'eval_runtime': '0.5', "
    text += "'eval_samples_per_second': '122.9', 'epoch': '2.0'}\n"
    assert curve(text) == [{"step": 1, "eval_loss": 0.6, "eval_accuracy": 0.5}]


def test_steps_that_begin_again_in_each_epoch_go_on():
    lines = [f"epoch {e} step {s} loss {3 - e}" for e in (0, 1) for s in (0, 10)]
    assert [row["step"] for row in curve("\n".join(lines))] == [0, 10, 11, 21]


def test_the_quick_start_counts_examples_from_epoch_to_epoch():
    epoch = "loss: 2.3  [   64/60000]\nloss: 2.2  [ 6464/60000]\n"
    rows = curve("".join(f"Epoch {n}\n-----\n{epoch}" for n in (1, 2)))
    assert [row["step"] for row in rows] == [64, 6464, 60064, 66464]


@pytest.mark.parametrize(
    "line", ["step 4 of the plan", "iter 3", "wrote step 10 to loss.csv", "[ 3/4]"]
)
def test_other_sentences_make_no_curve(line):
    assert curve(line) == []


def test_without_a_bar_the_trainers_reports_are_counted():
    text = "".join(f"{{'loss': {3 - n}, 'epoch': {n / 4}}}\n" for n in (1, 2))
    assert [row["step"] for row in curve(text)] == [1, 2]


def test_lightnings_bars_go_on_from_epoch_to_epoch():
    bar = "Epoch {}: 100%|####| 10/10 [00:00<00:00, 99.0it/s, v_num=0, train_loss={}]\r"
    rows = curve(bar.format(0, 0.5) + bar.format(1, 0.25))
    assert rows == [{"step": 10, "train_loss": 0.5}, {"step": 20, "train_loss": 0.25}]


def test_keras_tells_once_an_epoch():
    text = (
        "Epoch 1/2\n"
        " 1/32 [..............................] - ETA: 0s - loss: 2.3\r"
        "32/32 [==============================] - 1s 9ms/step - loss: 0.5 - "
        "val_accuracy: 0.75\n"
        "Epoch 2/2\n"
        "\x1b[1m32/32\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m "
        "\x1b[1m1s\x1b[0m 9ms/step - accuracy: 0.95 - loss: 0.25\n"
    )
    assert curve(text) == [
        {"step": 32, "loss": 0.5, "val_accuracy": 0.75},
        {"step": 64, "accuracy": 0.95, "loss": 0.25},
    ]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("epoch 1/2 loss 2.3", {"step": 1, "loss": 2.3}),
        ("Epoch 3: train_loss=0.4, val_acc=0.9", {"step": 3, "train_loss": 0.4}),
        ("Epoch [2/8], Step [100/600], Loss: 0.3", {"step": 1300, "loss": 0.3}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", {"step": 60640, "loss": 2.3}),
        (" 30%|###| 3/10 [00:02<00:05, 1.3it/s, loss=2.3]", {"step": 3, "loss": 2.3}),
        ("step=4 loss=2.5", {"step": 4, "loss": 2.5}),
        ("step 6: loss 1.02", {"step": 6, "loss": 1.02}),
        ("iter 250: loss 2.41, time 90.13ms, mfu 17.2%", {"step": 250, "loss": 2.41}),
        (
            "[rank0] Step [7/40] | loss: 0.5 | lr 1e-4",
            {"step": 7, "loss": 0.5} | {"lr": 1e-4},
        ),
        (
            "epoch 3: {'accuracy': 0.75, 'f1': 0.8}",
            {"step": 3, "accuracy": 0.75} | {"f1": 0.8},
        ),
        ("loss: 2.303  [   64/60000]", {"step": 64, "loss": 2.303}),
    ],
)
def test_plain_lines_of_tutorials(line, row):
    (found,) = curve(line)
    assert row.items() <= found.items()


@pytest.mark.parametrize(
    "line",
    [
        "Epoch [2/8] begins",
        "INFO: 3 GPUs found, epoch of 2020",
        "  0%|          | 0/10 [00:00<?, ?it/s]",
        "{'a': 'b', 'epoch': 'none'}",
        "loss 2.3",
        "epoch 1 loss nan",
        "epoch 1/2 loss " + "9" * 2000,
    ],
)
def test_other_lines_are_no_point_of_a_curve(line):
    assert curve(line) == []


@pytest.mark.parametrize(
    "line",
    ["epoch" * 400, "1%|" * 660, "{'a': " * 330, "1/1 " * 500, "epoch 1 a" * 220],
)
def test_hostile_lines_take_no_time(line):
    output, began = TrainingOutput(), time.process_time()
    for _ in range(50):
        output.read(line)
    assert time.process_time() - began < 1.0


@given(st.lists(st.text(max_size=120), max_size=5))
def test_any_output_is_read_without_a_fault(lines):
    output = TrainingOutput()
    for line in lines:
        found = output.read(line)
        assert found is None or (len(found) > 1 and found["step"] >= 0)
