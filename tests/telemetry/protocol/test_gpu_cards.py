"""The table of cards: vendors' dense figures by name, and nothing for another name."""

import pytest

from telemetry.protocol.gpu_cards import CARDS, SOURCES, TERA, card_of

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("name", "capability", "fp16", "bf16", "fp8", "gigabytes", "nvlink"),
    [
        ("Tesla P40", "6.1", 0.18, 0, 0, 346, 0),
        ("Tesla V100-SXM2-32GB", "7.0", 125, 0, 0, 900, 300),
        ("Tesla T4", "7.5", 65, 0, 0, 320, 0),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", 53.8, 0, 0, 616, 100),
        ("NVIDIA A100-SXM4-80GB", "8.0", 312, 312, 0, 2039, 600),
        ("NVIDIA A800 80GB PCIe", "8.0", 312, 312, 0, 1935, 400),
        ("NVIDIA RTX A5000", "8.6", 111.1, 111.1, 0, 768, 112.5),
        ("NVIDIA L40S", "8.9", 362, 362, 733, 864, 0),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", 364, 364, 728.5, 960, 0),
        ("NVIDIA H100 80GB HBM3", "9.0", 989, 989, 1979, 3352, 900),
        ("NVIDIA H20", "9.0", 148, 148, 296, 4000, 900),
        ("NVIDIA GH200 480GB", "9.0", 989, 989, 1979, 4000, 900),
        ("NVIDIA GB200", "10.0", 2500, 2500, 5000, 8000, 1800),
        ("NVIDIA B300 SXM6 AC", "10.3", 2250, 2250, 4500, 7700, 1800),
        ("NVIDIA GeForce RTX 5090", "12.0", 209.5, 209.5, 419, 1792, 0),
        ("AMD Instinct MI300X", "gfx942", 1307, 1307, 2615, 5300, 0),
    ],
)
def test_a_card_has_its_data_sheets_dense_figures(
    name, capability, fp16, bf16, fp8, gigabytes, nvlink
):
    card = card_of(name)

    assert card.name == name
    assert card.compute_capability == capability
    rates = (card.fp16_flops, card.bf16_flops, card.fp8_flops)
    assert rates == pytest.approx((fp16 * TERA, bf16 * TERA, fp8 * TERA))
    assert card.memory_bytes_per_second == gigabytes * 1e9
    assert card.nvlink_bytes_per_second == nvlink * 1e9
    assert card.source in SOURCES.values()


def test_the_table_is_of_one_piece():
    names = [card.name for card in CARDS]
    assert len(CARDS) >= 120
    assert len({name.lower() for name in names}) == len(names)
    assert {card.source for card in CARDS} == set(SOURCES.values())
    for card in CARDS:
        assert card_of(card.name) is card
        assert card.memory_gb > 0 < card.memory_bytes_per_second
        assert card.half_flops >= card.fp32_flops > 0
        assert bool(card.nvlink_generation) == bool(card.nvlink_bytes_per_second)
        # Tensor cores of one card do 8 bits at about twice the rate of 16.
        if card.fp8_flops:
            assert card.fp8_flops / card.bf16_flops == pytest.approx(2, rel=0.03)
        if card.bf16_flops and card.compute_capability != "gfx908":
            assert card.has_flash_attention


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-16GB"),
        ("GeForce RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("RTX 3090 24GB", "NVIDIA GeForce RTX 3090"),
        ("T4 15GB", "Tesla T4"),
        ("nvidia a100 80gb", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3"),
        ("RTX 6000 24GB", "Quadro RTX 6000"),
    ],
)
def test_the_vendors_words_and_the_memory_may_be_left_out(written, name):
    assert card_of(written).name == name


@pytest.mark.parametrize("name", ["", "GPU", "Matrox G200", "RTX 3090 Super", "A1000"])
def test_another_card_is_unknown(name):
    assert card_of(name) is None
