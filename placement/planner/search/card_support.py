"""The needs of a workload that a card may lack: bf16 arithmetic, flash attention.

The table of cards has the facts (`telemetry/protocol/gpu_cards.py`). A card that is not
in the table is never refused.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from placement.planner.model.spec import ModelSpec
from placement.planner.values.calibration import ENOUGH, Corrections
from placement.planner.values.gpu_availability import UNKNOWN_PEAK_FLOPS, GpuOffer
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import GpuCard
from telemetry.protocol.sentences import sentence

BF16_PRECISIONS = ("bf16", "autocast_bf16", "megatron_bf16")


def missing_support(card: GpuCard | None, workload: Workload) -> str:
    """Return why a card cannot run the requested workload; "" if it can.

    torch emulates bf16 on cards without it (torch/cuda/__init__.py, is_bf16_supported),
    several times slower than fp32, so such a card is refused.
    """
    if card is None or workload.accelerator != "cuda":
        return ""
    reasons = []
    if workload.precision in BF16_PRECISIONS and not card.bf16_flops:
        reasons.append(
            sentence("it has no bf16 arithmetic (choose an fp16 precision or fp32)")
        )
    if workload.attention == "flash" and not card.has_flash_attention:
        reasons.append(
            sentence("flash attention does not run on it (choose efficient attention)")
        )
    if not reasons:
        return ""
    return sentence(
        "{name}, compute capability {capability}: {reasons}.",
        name=card.name,
        capability=card.compute_capability,
        reasons=", ".join(reasons),
    )


def workload_defaults(
    cards: Iterable[GpuCard | None],
    asked: Workload | None = None,
    *,
    given: Container[str] = (),
) -> dict[str, str]:
    """Return the precision and the attention that suit the task and some of the cards.

    Inference loads its weights in 16 bits. torch's scaled_dot_product_attention also
    takes the efficient kernel where the flash kernel does not run, so the change needs
    no other code.

    Args:
        cards: the cards that there are; None: one that is not in the table.
        asked: the workload; None: the default one.
        given: its fields that were chosen, which stay.

    Returns:
        Fields of a Workload that differ from `asked`.
    """
    asked = asked or Workload()
    usual = asked
    if not asked.trains and "precision" not in given:
        usual = usual.replace(precision="bf16")
    there = list(cards)
    if there and all(missing_support(card, usual) for card in there):
        if usual.precision in BF16_PRECISIONS and any(
            card and not card.bf16_flops for card in there
        ):
            fp16 = "autocast_fp16" if asked.trains else "fp16"
            usual = usual.replace(precision=fp16)
        if any(card and not card.has_flash_attention for card in there):
            usual = usual.replace(attention="efficient")
    found = {"precision": usual.precision, "attention": usual.attention}
    return {
        name: value
        for name, value in found.items()
        if name not in given and value != getattr(asked, name)
    }


def completed_workload(
    data: Mapping[str, Any], cards: Iterable[GpuCard | None]
) -> Workload:
    """Read a Workload and fill in the precision and the attention that it lacks.

    Args:
        data: fields of a Workload, as `Workload.from_json` reads them.
        cards: see `workload_defaults`.

    Raises:
        WorkloadInvalid: by field.
    """
    asked = Workload.from_json(data)
    return asked.replace(**workload_defaults(cards, asked, given=data))


def cards_of(offers: Iterable[GpuOffer]) -> list[GpuCard | None]:
    """Return the cards of the usable offers. If none is usable, return all cards."""
    there = list(offers)
    usable = [one.card for one in there if one.usable]
    return usable or [one.card for one in there]


def supported(offers: Sequence[GpuOffer], workload: Workload) -> list[GpuOffer]:
    """Return the offers. Those whose card cannot run the workload are not bookable."""
    return [_supported(offer, workload) for offer in offers]


def _supported(offer: GpuOffer, workload: Workload) -> GpuOffer:
    reason = missing_support(offer.card, workload) if offer.usable else ""
    return replace(offer, bookable=False, reason=reason) if reason else offer


def unsupported_notes(
    offers: Sequence[GpuOffer], workload: Workload
) -> tuple[str, ...]:
    """Return a sentence for each kind of card that cannot run the workload."""
    reasons = dict.fromkeys(missing_support(offer.card, workload) for offer in offers)
    return tuple(
        sentence("Left out: {reason}", reason=reason) for reason in reasons if reason
    )


def unknown_speed_notes(
    offers: Sequence[GpuOffer], learned: Corrections
) -> tuple[str, ...]:
    """Return a sentence for each kind of card whose speed is not in the table."""
    notes = []
    kinds = {o.name: o.gpu_class for o in offers if o.speed_is_unknown}
    for name, gpu_class in sorted(kinds.items()):
        measured = learned.by_class.get(gpu_class)
        if measured is not None:
            text = sentence(
                "{name} is not in the table of cards. Its step times follow the {runs} "
                "runs measured here.",
                name=name,
                runs=measured.runs,
            )
        else:
            text = sentence(
                "{name} is not in the table of cards, so its speed is unknown. Step "
                "times count {tera} TFLOPS until {enough} runs have been measured "
                "here.",
                name=name,
                tera=f"{UNKNOWN_PEAK_FLOPS / 1e12:.0f}",
                enough=ENOUGH,
            )
        notes.append(text)
    return tuple(notes)


def batch_norm_notes(spec: ModelSpec, workload: Workload) -> tuple[str, ...]:
    """Return the effect of accumulation on a model with batch norms, if it has some."""
    if not spec.batch_norms or not workload.trains or workload.accumulation < 2:
        return ()
    return (
        sentence(
            "The model has BatchNorm. With accumulation each microbatch of {size} is "
            "normed by its own statistics, so the result differs from one batch.",
            size=workload.microbatch(),
        ),
    )
