"""Curves from the output of training libraries, without any change to the code."""

import time

import pytest
from hypothesis import example, given
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


def test_bars_of_evaluations_and_files_are_not_the_runs():
    """As of transformers' Trainer and TRL, which save before the summary."""
    text = (
        "Map: 100%|##########| 494/494 [00:00<00:00, 9 examples/s]\n"
        " 50%|#####     | 15/30 [00:02<00:02,  9.9it/s]\n"
        " 50%|#####     | 1/2 [00:00<00:00,  9.9it/s]\n"
        "{'eval_loss': '3.25', 'eval_runtime': '0.5', 'epoch': '1'}\n"
        "100%|##########| 30/30 [00:03<00:00,  8.3it/s]\n"
        "Writing model shards: 100%|##########| 1/1 [00:00<00:00, 464.85it/s]\n"
        "{'train_runtime': '3.4', 'train_loss': '7.2', 'epoch': '0.48'}\n"
    )
    assert curve(text) == [
        {"step": 15, "eval_loss": 3.25},
        {"step": 30, "train_loss": 7.2},
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


def test_losses_of_a_logger_are_counted_until_a_line_has_a_step():
    """As DeepSpeed's HelloDeepSpeed prints them, through loguru."""
    head = "2026-11-29 13:55:43.842 | INFO     | __main__:log_dist:54 - [Rank 0] "
    lines = [
        f"{head}{words}" for words in ("Creating Model", "Loss: 10.8", "Loss: 9.5")
    ]
    assert curve("\n".join(lines)) == [
        {"step": 1, "loss": 10.8},
        {"step": 2, "loss": 9.5},
    ]
    assert curve("loss: 2.5\nloss = 2.25\n")[-1] == {"step": 2, "loss": 2.25}
    # The last one is of another data set, or there are steps.
    assert curve("Test loss: 0.5\nfinal loss: 0.5\nloss: 0.5 of 3\n") == []
    assert curve("step 7: loss 2.0\nloss: 1.0\n") == [{"step": 7, "loss": 2.0}]


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
        (
            "| epoch   1 |   200/ 2983 batches | lr 20.00 | loss  7.67 | ppl  2141.92",
            {"step": 3183, "lr": 20, "loss": 7.67, "ppl": 2141.92},
        ),
        ("[0/5][50/1583]\tLoss_D: 0.5\tLoss_G: 3.2", {"step": 50, "loss_g": 3.2}),
        (
            "Train: 1 [  50/1251 (  4%)]  Loss:  5.93 (6.93)  LR: 1.000e-04",
            {"step": 1301, "loss": 5.93, "lr": 1e-4},
        ),
        (
            "Epoch: [1][  10/5005]\tLoss 5.9e+00 (6.0e+00)\tAcc@1   0.39 (  0.29)",
            {"step": 5015, "loss": 5.9, "acc@1": 0.39},
        ),
        ("epoch 002:    100 / 200 loss=9.3, ppl=600.1", {"step": 500, "loss": 9.3}),
        (
            " iteration       10/  500000 | lm loss: 1.08E+01 | grad norm: 3.1 |",
            {"step": 10, "lm_loss": 10.8, "grad_norm": 3.1},
        ),
        ("Iteration 2, loss = 0.42", {"step": 2, "loss": 0.42}),
        ("steps: 10 loss: 5.4 iter time (s): 0.5", {"step": 10, "loss": 5.4}),
        ("Epoch 1: loss=0.5 acc=98.2%", {"step": 1, "acc": 98.2}),
        (
            "step 0: train loss 4.28, val loss 4.29",
            {"step": 0, "train_loss": 4.28, "val_loss": 4.29},
        ),
        (
            "step: 9, Train Loss: 4.28, Valid. Loss: 4.29",
            {"step": 9, "train_loss": 4.28, "valid_loss": 4.29},
        ),
        ("train.py:42 - step=7 loss=0.5", {"step": 7, "loss": 0.5}),
        ("Epoch: 001, Train: 0.93, Val: 0.75", {"step": 1, "train": 0.93, "val": 0.75}),
        (
            "Epoch 1 loss=0.53:  30%|##  | 3/10 [00:02<00:05]",
            {"step": 13, "loss": 0.53},
        ),
        (
            "[1]\ttrain-rmse:0.40\tvalid-rmse:0.47",
            {"step": 1, "train_rmse": 0.4, "valid_rmse": 0.47},
        ),
        (
            "[10]\ttraining's l2: 0.244\tvalid_1's l2: 0.247",
            {"step": 10, "training_l2": 0.244, "valid_1_l2": 0.247},
        ),
        (
            "3:\tlearn: 0.5\ttest: 0.6\tbest: 0.6 (3)\ttotal: 5ms",
            {"step": 3, "best": 0.6},
        ),
    ],
)
def test_plain_lines_of_tutorials(line, row):
    (found,) = curve(line)
    assert row.items() <= found.items()


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        # Epoch and batch, as in PyTorch's tutorial of CIFAR-10
        (
            ("[1,  2000] loss: 2.1", "[1,  4000] loss: 1.8", "[2,  2000] loss: 1.3"),
            [2000, 4000, 6001],
        ),
        (("[1,    10] loss: 2.1", "[2,    10] loss: 1.3"), [10, 21]),
        (("Epoch 1, Batch 9, Loss 2.1", "Epoch 2, Batch 9, Loss 1.3"), [9, 19]),
        # A summary of an epoch is on the axis of its steps.
        (
            ("Train Epoch: 1 [640/6000 (9%)]\tLoss: 1.2", "Epoch 1: val_loss 1"),
            [6640, 6640],
        ),
        (("Epoch: 02 | Time: 0m 5s", "\tTrain Loss: 0.6 | Train Acc: 50.1%"), [2]),
        (("Epoch: 0", "\t Val. Loss: 0.690 |  Val. Acc: 55.1%"), [0]),
        (("Epoch 3", "Test Error: ", " Accuracy: 44.1%, Avg loss: 2.15 "), [3]),
        # Without an epoch before it, a line has no step.
        (("Train Loss: 0.6 | Train Acc: 50.1%", "Test loss: 0.1"), []),
        (("Epoch 1", "loss 2.3", "Testing: 3 errors"), []),
    ],
)
def test_lines_of_a_run_share_one_axis(lines, steps):
    assert [row["step"] for row in curve("\n".join(lines))] == steps


def test_a_test_set_has_its_own_curve():
    rows = curve(
        "Train Epoch: 1 [640/6000 (9%)]\tLoss: 1.2\n\n"
        "Test set: Average loss: 0.0470, Accuracy: 9844/10000 (98%)\n"
    )
    assert rows[1] == {"step": 6640, "test_loss": 0.047}


def test_a_table_has_a_row_for_each_epoch():
    rows = curve(
        "epoch     train_loss  valid_loss  accuracy  time\n"
        "0         0.512       0.412       0.91      00:10\n"
        "1 of 2 done\n"
        "1         0.412       nan         0.93      00:10\n"
    )
    assert rows == [
        {"step": 0, "train_loss": 0.512, "valid_loss": 0.412, "accuracy": 0.91},
        {"step": 1, "train_loss": 0.412, "accuracy": 0.93},
    ]


def test_a_redrawn_row_counts_once_it_is_complete():
    head = "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n"
    row = "        {}/3      2.61G      {}      1.398         81        640: {}\r"
    bars = (" 50%|##   | 4/8 [00:01<00:01]", "100%|#####| 8/8 [00:02<00:00]")
    text = head + "".join(row.format(1, 1 + n, bar) for n, bar in enumerate(bars))
    assert curve(text) == [{"step": 1, "box_loss": 2, "cls_loss": 1.398}]


def test_a_table_with_a_metric_in_each_row():
    text = (
        "------------------------------\n"
        "| rollout/           |       |\n"
        "|    ep_rew_mean     | 22.1  |\n"
        "| time/              |       |\n"
        "|    total_timesteps | 2048  |\n"
        "| train/             |       |\n"
        "|    loss            | -0.01 |\n"
        "------------------------------\n"
    )
    rows = curve(text + text.replace("2048", "4096"))
    assert [row["step"] for row in rows] == [2048, 4096]
    assert rows[0] == {"step": 2048, "ep_rew_mean": 22.1, "loss": -0.01}


@pytest.mark.parametrize(
    "lines",
    [
        ("step 1 loss 2.5", "step 2 loss nan", "step 3 loss NaN"),
        ("step=1 loss=2.5 lr=0.1", "step=2 loss=nan lr=0.1", "step=3 loss=-inf lr=0.1"),
        ("[1,  1] loss: 2.3", "[1,  2] loss: nan"),
        ('{"step": 1, "loss": 2}', '{"step": 2, "loss": NaN}'),
    ],
)
def test_the_first_step_that_is_not_a_number_is_remembered(lines):
    output = TrainingOutput()
    rows = [row for line in lines if (row := output.read(line))]
    assert output.not_finite == {"loss": 2}
    assert [row["step"] for row in rows if "loss" in row] == [1]


def test_the_trainers_dictionaries_say_nan_too():
    output = TrainingOutput()
    output.read("{'loss': 4.1, 'grad_norm': 1.2, 'epoch': 0.5}")
    output.read("{'loss': nan, 'grad_norm': inf, 'epoch': 1.0}")
    assert output.not_finite == {"loss": 2, "grad_norm": 2}


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
        *(
            "step=-5 loss=2",
            "step=1e16 loss=2",
            "step=1 loss=-1e300",
            "step 1 lr 1e999",
        ),
        # The dotless i: a search that ignores case takes it for an i.
        *(
            "step=1 loss=\u0131nf",
            "epoch 1 loss \u0130nf",
            "{'lr': \u0131nf, 'epoch': 1}",
        ),
    ],
)
def test_other_lines_are_no_point_of_a_curve(line):
    assert curve(line) == []


@pytest.mark.parametrize(
    "line",
    [
        *("epoch" * 400, "1%|" * 660, "{'a': " * 330, "1/1 " * 500, "epoch 1 a" * 220),
        *("epoch 1 " + "val. " * 390, "| a" + " " * 1900, "[1]\t" + "a: " * 600),
        *("epoch " + "a " * 990, "epoch 1 loss" + " " * 1900, "train loss" * 199),
    ],
)
def test_hostile_lines_take_no_time(line):
    output, began = TrainingOutput(), time.process_time()
    for _ in range(50):
        output.read(line)
    assert time.process_time() - began < 1.0


@given(st.lists(st.text(max_size=120), max_size=5))
@example(["step=-1 loss=1"])
def test_any_output_is_read_without_a_fault(lines):
    output = TrainingOutput()
    for line in lines:
        found = output.read(line)
        assert found is None or (len(found) > 1 and found["step"] >= 0)
