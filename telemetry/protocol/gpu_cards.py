"""The table of cards: the abilities of each GPU, by the name that its driver reports.

The figures are the vendors'. Arithmetic is dense, never with structured sparsity, which
the data sheets of Ampere and later print as twice as much. Tensor cores take 16-bit or
8-bit numbers and accumulate in fp32, because frameworks do. GeForce cards are half as
fast with fp32 sums as with 16-bit sums. A rate that a data sheet gives only with
sparsity is halved here. fp32 is the rate of the ordinary cores, because torch does not
use TF32 unless a program allows it.

For a card that is not in the table `card_of` returns None, never a guess. AMD's MI210
to MI250X report each of their dies as one GPU, so a row is one die.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

TERA = 1e12
GIGA = 1e9

SOURCES = {
    "pascal": "NVIDIA Tesla P100 whitepaper (WP-08019-001); P4 and P40 data sheets",
    "geforce10": "NVIDIA GeForce GTX 1080 whitepaper; GeForce 10 series specifications",
    "quadro-p": "NVIDIA Quadro Pascal data sheets",
    "volta": "NVIDIA V100 Tensor Core GPU data sheet; V100S data sheet",
    "titan-v": "NVIDIA TITAN V specifications; Quadro GV100 data sheet",
    "turing": "NVIDIA Turing GPU architecture whitepaper (WP-09183-001), tables 1 to 6",
    "t4": "NVIDIA T4 Tensor Core GPU data sheet",
    "t-series": "NVIDIA T400, T600 and T1000 data sheets",
    "geforce16": "NVIDIA GeForce GTX 16 series specifications",
    "a100": "NVIDIA A100 Tensor Core GPU data sheet",
    "a800": "NVIDIA A800 data sheets (A100 with NVLink at 400 GB/s)",
    "a30": "NVIDIA A30 Tensor Core GPU data sheet",
    "ampere-server": "NVIDIA A2, A10, A16 and A40 data sheets",
    "a10g": "NVIDIA A10G data sheet, as Amazon publishes it for G5",
    "ampere-rtx": "NVIDIA RTX A series data sheets",
    "ga102": "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A",
    "geforce30": "NVIDIA GeForce RTX 30 series specifications; GA102 whitepaper",
    "ada-server": "NVIDIA L4, L40 and L40S data sheets",
    "ada-china": "NVIDIA L2 and L20 data sheets",
    "ada-rtx": "NVIDIA RTX Ada Generation data sheets",
    "ada": "NVIDIA Ada GPU architecture whitepaper, appendix A",
    "geforce40": "NVIDIA GeForce RTX 40 series specifications; Ada whitepaper",
    "h100": "NVIDIA H100 Tensor Core GPU data sheet",
    "h200": "NVIDIA H200 Tensor Core GPU data sheet",
    "h800": "NVIDIA H800 data sheet (H100 with NVLink at 400 GB/s)",
    "h20": "NVIDIA H20 data sheet",
    "gh200": "NVIDIA GH200 Grace Hopper Superchip data sheet",
    "b200": "NVIDIA HGX B200 data sheet, an eighth of the board",
    "gb200": "NVIDIA GB200 NVL72 data sheet, a 72nd of the rack",
    "b300": "NVIDIA HGX B300 data sheet, an eighth of the board",
    "gb300": "NVIDIA GB300 NVL72 data sheet, a 72nd of the rack",
    "pro": "NVIDIA RTX PRO Blackwell data sheets (an eighth of the FP4 rate)",
    "blackwell": "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A",
    "geforce50": "NVIDIA GeForce RTX 50 series specifications; Blackwell whitepaper",
    "mi100": "AMD Instinct MI100 data sheet",
    "mi200": "AMD Instinct MI210, MI250 and MI250X data sheets, one die",
    "mi300": "AMD Instinct MI300A, MI300X and MI325X data sheets",
    "mi350": "AMD Instinct MI350X and MI355X data sheets",
}
"""Key of a row's last column -> the vendor's document."""

_TABLE = """
name|capability|GB|GB/s|fp32|fp16|bf16|fp8|NVLink|GB/s, both ways|source
Tesla P100-SXM2-16GB|6.0|16|732|10.6|21.2|-|-|1|160|pascal
Tesla P100-PCIE-16GB|6.0|16|732|9.3|18.7|-|-|-|-|pascal
Tesla P100-PCIE-12GB|6.0|12|549|9.3|18.7|-|-|-|-|pascal
Tesla P40|6.1|24|346|11.8|0.18|-|-|-|-|pascal
Tesla P4|6.1|8|192|5.5|0.09|-|-|-|-|pascal
NVIDIA GeForce GTX 1060 6GB|6.1|6|192|4.4|0.07|-|-|-|-|geforce10
NVIDIA GeForce GTX 1070|6.1|8|256|6.5|0.10|-|-|-|-|geforce10
NVIDIA GeForce GTX 1070 Ti|6.1|8|256|8.2|0.13|-|-|-|-|geforce10
NVIDIA GeForce GTX 1080|6.1|8|320|8.9|0.14|-|-|-|-|geforce10
NVIDIA GeForce GTX 1080 Ti|6.1|11|484|11.3|0.18|-|-|-|-|geforce10
NVIDIA TITAN X (Pascal)|6.1|12|480|11.0|0.17|-|-|-|-|geforce10
NVIDIA TITAN Xp|6.1|12|548|12.1|0.19|-|-|-|-|geforce10
Quadro P4000|6.1|8|243|5.3|0.08|-|-|-|-|quadro-p
Quadro P5000|6.1|16|288|8.9|0.14|-|-|-|-|quadro-p
Quadro P6000|6.1|24|432|12.6|0.20|-|-|-|-|quadro-p
Tesla V100-SXM2-16GB|7.0|16|900|15.7|125|-|-|2|300|volta
Tesla V100-SXM2-32GB|7.0|32|900|15.7|125|-|-|2|300|volta
Tesla V100-SXM3-32GB|7.0|32|900|15.7|125|-|-|2|300|volta
Tesla V100-PCIE-16GB|7.0|16|900|14.0|112|-|-|-|-|volta
Tesla V100-PCIE-32GB|7.0|32|900|14.0|112|-|-|-|-|volta
Tesla V100S-PCIE-32GB|7.0|32|1134|16.4|130|-|-|-|-|volta
NVIDIA TITAN V|7.0|12|653|14.9|110|-|-|-|-|titan-v
Quadro GV100|7.0|32|870|14.8|118.5|-|-|2|200|titan-v
Tesla T4|7.5|16|320|8.1|65|-|-|-|-|t4
NVIDIA T400|7.5|2|80|1.1|2.2|-|-|-|-|t-series
NVIDIA T400 4GB|7.5|4|80|1.1|2.2|-|-|-|-|t-series
NVIDIA T600|7.5|4|160|1.7|3.4|-|-|-|-|t-series
NVIDIA T1000|7.5|4|160|2.5|5.0|-|-|-|-|t-series
NVIDIA T1000 8GB|7.5|8|160|2.5|5.0|-|-|-|-|t-series
NVIDIA GeForce GTX 1650|7.5|4|128|3.0|6.0|-|-|-|-|geforce16
NVIDIA GeForce GTX 1660|7.5|6|192|5.0|10.0|-|-|-|-|geforce16
NVIDIA GeForce GTX 1660 SUPER|7.5|6|336|5.0|10.0|-|-|-|-|geforce16
NVIDIA GeForce GTX 1660 Ti|7.5|6|288|5.4|10.9|-|-|-|-|geforce16
NVIDIA GeForce RTX 2060|7.5|6|336|6.5|25.8|-|-|-|-|turing
NVIDIA GeForce RTX 2060 SUPER|7.5|8|448|7.2|28.7|-|-|-|-|turing
NVIDIA GeForce RTX 2070|7.5|8|448|7.5|29.9|-|-|-|-|turing
NVIDIA GeForce RTX 2070 SUPER|7.5|8|448|9.1|36.3|-|-|2|50|turing
NVIDIA GeForce RTX 2080|7.5|8|448|10.1|40.3|-|-|2|50|turing
NVIDIA GeForce RTX 2080 SUPER|7.5|8|496|11.2|44.6|-|-|2|50|turing
NVIDIA GeForce RTX 2080 Ti|7.5|11|616|13.4|53.8|-|-|2|100|turing
NVIDIA TITAN RTX|7.5|24|672|16.3|130.5|-|-|2|100|turing
Quadro RTX 4000|7.5|8|416|7.1|57.0|-|-|-|-|turing
Quadro RTX 5000|7.5|16|448|11.2|89.2|-|-|2|50|turing
Quadro RTX 6000|7.5|24|672|16.3|130.5|-|-|2|100|turing
Quadro RTX 8000|7.5|48|672|16.3|130.5|-|-|2|100|turing
NVIDIA A100-SXM4-40GB|8.0|40|1555|19.5|312|312|-|3|600|a100
NVIDIA A100-SXM4-80GB|8.0|80|2039|19.5|312|312|-|3|600|a100
NVIDIA A100-PCIE-40GB|8.0|40|1555|19.5|312|312|-|3|600|a100
NVIDIA A100 80GB PCIe|8.0|80|1935|19.5|312|312|-|3|600|a100
NVIDIA A800-SXM4-80GB|8.0|80|2039|19.5|312|312|-|3|400|a800
NVIDIA A800 80GB PCIe|8.0|80|1935|19.5|312|312|-|3|400|a800
NVIDIA A800 40GB Active|8.0|40|1555|19.5|312|312|-|3|400|a800
NVIDIA A30|8.0|24|933|10.3|165|165|-|3|200|a30
NVIDIA A2|8.6|16|200|4.5|18|18|-|-|-|ampere-server
NVIDIA A10|8.6|24|600|31.2|125|125|-|-|-|ampere-server
NVIDIA A10G|8.6|24|600|35|70|70|-|-|-|a10g
NVIDIA A16|8.6|16|200|4.5|17.9|17.9|-|-|-|ampere-server
NVIDIA A40|8.6|48|696|37.4|149.7|149.7|-|3|112.5|ampere-server
NVIDIA RTX A2000|8.6|6|288|8.0|31.9|31.9|-|-|-|ampere-rtx
NVIDIA RTX A2000 12GB|8.6|12|288|8.0|31.9|31.9|-|-|-|ampere-rtx
NVIDIA RTX A4000|8.6|16|448|19.2|76.7|76.7|-|-|-|ampere-rtx
NVIDIA RTX A4500|8.6|20|640|23.7|94.6|94.6|-|3|112.5|ampere-rtx
NVIDIA RTX A5000|8.6|24|768|27.8|111.1|111.1|-|3|112.5|ampere-rtx
NVIDIA RTX A5500|8.6|24|768|34.1|136.4|136.4|-|3|112.5|ampere-rtx
NVIDIA RTX A6000|8.6|48|768|38.7|154.8|154.8|-|3|112.5|ampere-rtx
NVIDIA GeForce RTX 3050|8.6|8|224|9.1|18.2|18.2|-|-|-|geforce30
NVIDIA GeForce RTX 3060|8.6|12|360|12.7|25.5|25.5|-|-|-|geforce30
NVIDIA GeForce RTX 3060 Ti|8.6|8|448|16.2|32.4|32.4|-|-|-|geforce30
NVIDIA GeForce RTX 3070|8.6|8|448|20.3|40.6|40.6|-|-|-|geforce30
NVIDIA GeForce RTX 3070 Ti|8.6|8|608|21.7|43.5|43.5|-|-|-|geforce30
NVIDIA GeForce RTX 3080|8.6|10|760|29.8|59.5|59.5|-|-|-|ga102
NVIDIA GeForce RTX 3080 Ti|8.6|12|912|34.1|68.2|68.2|-|-|-|geforce30
NVIDIA GeForce RTX 3090|8.6|24|936|35.6|71|71|-|3|112.5|ga102
NVIDIA GeForce RTX 3090 Ti|8.6|24|1008|40.0|80.0|80.0|-|3|112.5|geforce30
NVIDIA L2|8.9|24|300|24.1|96.5|96.5|193|-|-|ada-china
NVIDIA L4|8.9|24|300|30.3|121|121|242|-|-|ada-server
NVIDIA L20|8.9|48|864|59.8|119.5|119.5|239|-|-|ada-china
NVIDIA L40|8.9|48|864|90.5|181|181|362|-|-|ada-server
NVIDIA L40S|8.9|48|864|91.6|362|362|733|-|-|ada-server
NVIDIA RTX 2000 Ada Generation|8.9|16|224|12.0|47.9|47.9|95.9|-|-|ada-rtx
NVIDIA RTX 4000 Ada Generation|8.9|20|360|26.7|106.9|106.9|213.8|-|-|ada-rtx
NVIDIA RTX 4000 SFF Ada Generation|8.9|20|280|19.2|76.7|76.7|153.4|-|-|ada-rtx
NVIDIA RTX 4500 Ada Generation|8.9|24|432|39.6|158.5|158.5|317|-|-|ada-rtx
NVIDIA RTX 5000 Ada Generation|8.9|32|576|65.3|261.1|261.1|522.2|-|-|ada-rtx
NVIDIA RTX 5880 Ada Generation|8.9|48|960|69.3|277.1|277.1|554.2|-|-|ada-rtx
NVIDIA RTX 6000 Ada Generation|8.9|48|960|91.1|364|364|728.5|-|-|ada-rtx
NVIDIA GeForce RTX 4060|8.9|8|272|15.1|30.2|30.2|60.5|-|-|geforce40
NVIDIA GeForce RTX 4060 Ti|8.9|8|288|22.1|44.1|44.1|88.3|-|-|geforce40
NVIDIA GeForce RTX 4070|8.9|12|504|29.1|58.3|58.3|116.6|-|-|geforce40
NVIDIA GeForce RTX 4070 SUPER|8.9|12|504|35.5|71.0|71.0|142|-|-|geforce40
NVIDIA GeForce RTX 4070 Ti|8.9|12|504|40.1|80.2|80.2|160.4|-|-|geforce40
NVIDIA GeForce RTX 4070 Ti SUPER|8.9|16|672|44.1|88.2|88.2|176.4|-|-|geforce40
NVIDIA GeForce RTX 4080|8.9|16|717|48.7|97.5|97.5|194.9|-|-|ada
NVIDIA GeForce RTX 4080 SUPER|8.9|16|736|52.2|104.4|104.4|208.9|-|-|geforce40
NVIDIA GeForce RTX 4090|8.9|24|1008|82.6|165|165|330.3|-|-|ada
NVIDIA GeForce RTX 4090 D|8.9|24|1008|73.5|147.1|147.1|294.2|-|-|geforce40
NVIDIA H100 80GB HBM3|9.0|80|3352|67|989|989|1979|4|900|h100
NVIDIA H100 PCIe|9.0|80|2039|51.2|756|756|1513|4|600|h100
NVIDIA H100 NVL|9.0|94|3938|60|835|835|1671|4|600|h100
NVIDIA H200|9.0|141|4800|67|989|989|1979|4|900|h200
NVIDIA H200 NVL|9.0|141|4800|60|835|835|1671|4|900|h200
NVIDIA H800|9.0|80|3352|67|989|989|1979|4|400|h800
NVIDIA H800 PCIe|9.0|80|2039|51.2|756|756|1513|4|400|h800
NVIDIA H20|9.0|96|4000|44|148|148|296|4|900|h20
NVIDIA GH200 480GB|9.0|96|4000|67|989|989|1979|4|900|gh200
NVIDIA GH200 144G HBM3e|9.0|144|4900|67|989|989|1979|4|900|gh200
NVIDIA B200|10.0|180|7700|75|2250|2250|4500|5|1800|b200
NVIDIA GB200|10.0|186|8000|80|2500|2500|5000|5|1800|gb200
NVIDIA B300 SXM6 AC|10.3|270|7700|75|2250|2250|4500|5|1800|b300
NVIDIA GB300|10.3|278|8000|80|2500|2500|5000|5|1800|gb300
NVIDIA RTX PRO 5000 Blackwell|12.0|48|1344|65|258|258|516|-|-|pro
NVIDIA RTX PRO 6000 Blackwell Workstation Edition|12.0|96|1792|125|500|500|1000|-|-|pro
NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition|\
12.0|96|1792|110|438|438|877|-|-|pro
NVIDIA RTX PRO 6000 Blackwell Server Edition|12.0|96|1597|120|500|500|1000|-|-|pro
NVIDIA GeForce RTX 5060|12.0|8|448|19.2|38.4|38.4|76.7|-|-|geforce50
NVIDIA GeForce RTX 5060 Ti|12.0|16|448|23.7|47.4|47.4|94.8|-|-|geforce50
NVIDIA GeForce RTX 5070|12.0|12|672|30.9|61.7|61.7|123.5|-|-|geforce50
NVIDIA GeForce RTX 5070 Ti|12.0|16|896|43.9|87.9|87.9|175.8|-|-|geforce50
NVIDIA GeForce RTX 5080|12.0|16|960|56.3|112.6|112.6|225.1|-|-|geforce50
NVIDIA GeForce RTX 5090|12.0|32|1792|104.8|209.5|209.5|419|-|-|blackwell
AMD Instinct MI100|gfx908|32|1229|23.1|184.6|92.3|-|-|-|mi100
AMD Instinct MI210|gfx90a|64|1638|22.6|181|181|-|-|-|mi200
AMD Instinct MI250|gfx90a|64|1638|22.6|181|181|-|-|-|mi200
AMD Instinct MI250X|gfx90a|64|1638|23.9|191.5|191.5|-|-|-|mi200
AMD Instinct MI300A|gfx942|128|5300|122.6|980.6|980.6|1961|-|-|mi300
AMD Instinct MI300X|gfx942|192|5300|163.4|1307|1307|2615|-|-|mi300
AMD Instinct MI325X|gfx942|256|6000|163.4|1307|1307|2615|-|-|mi300
AMD Instinct MI350X|gfx950|288|8000|144.2|2307|2307|4614|-|-|mi350
AMD Instinct MI355X|gfx950|288|8000|157.3|2517|2517|5033|-|-|mi350
"""
"""Teraoperations a second; - if the card has none. NVLink: generation and speed."""

_COMMON_NAMES = {
    "A100": "NVIDIA A100-SXM4-40GB",
    "A100 40GB": "NVIDIA A100-SXM4-40GB",
    "A100 80GB": "NVIDIA A100-SXM4-80GB",
    "A800": "NVIDIA A800-SXM4-80GB",
    "A800 80GB": "NVIDIA A800-SXM4-80GB",
    "B300": "NVIDIA B300 SXM6 AC",
    "GH200": "NVIDIA GH200 480GB",
    "H100": "NVIDIA H100 80GB HBM3",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "P100": "Tesla P100-PCIE-16GB",
    "RTX 6000 Ada": "NVIDIA RTX 6000 Ada Generation",
    "RTX PRO 6000 Blackwell": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "V100": "Tesla V100-SXM2-16GB",
    "V100 32GB": "Tesla V100-SXM2-32GB",
}
"""Common names in lists of GPUs -> the name that a driver reports."""
FLASH_CAPABILITY = (8, 0)
"""FlashAttention-2 runs on Ampere and later (github.com/Dao-AILab/flash-attention,
README; torch's sdp_utils.cpp checks the same)."""
CONTEXTS: dict[str, tuple[int, str]] = {
    "8.6": (
        256 * 2**20,
        "github.com/invoke-ai/InvokeAI issue 9413: RTX 3090, CUDA 12.8, no kernel",
    ),
    "8.9": (
        426 * 2**20,
        "github.com/unslothai/unsloth-zoo pull request 1053: RTX 6000 Ada, CUDA 13.0, "
        "no kernel",
    ),
    "9.0": (
        726_000_000,
        "tests/data/memory/measured_h200.json: H200, CUDA 13.0, least of 12 runs",
    ),
}
"""Compute capability -> bytes that a process of torch has on the card outside torch's
allocator, and the source. It is the CUDA context with the kernels that were loaded.
Other generations are unknown.
"""
_VENDOR = re.compile(r"^(nvidia|tesla|quadro|geforce|amd|instinct)\s+", re.I)
_MEMORY = re.compile(r"\s+\d+\s?gi?b$", re.I)
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One card of the table. A rate of 0: the card does not have it."""

    name: str
    compute_capability: str
    """CUDA's, such as "8.0"; AMD's target, such as "gfx90a"."""
    memory_gb: float
    """Nominal memory."""
    memory_bytes_per_second: float
    fp32_flops: float
    fp16_flops: float
    bf16_flops: float
    fp8_flops: float
    nvlink_generation: int
    """0: it has no NVLink."""
    nvlink_bytes_per_second: float
    """Of all its links in both directions together, as data sheets count."""
    source: str
    """Title of the vendor's document."""

    @property
    def half_flops(self) -> float:
        """Return 16-bit operations a second.

        If the fp16 units are slower than the fp32 ones (P40, GTX 10), cuBLAS computes
        16-bit products in fp32.
        """
        return max(self.fp16_flops, self.bf16_flops, self.fp32_flops)

    @property
    def context_bytes(self) -> int | None:
        """Return the bytes of a process outside torch's allocator; None: unknown."""
        known = CONTEXTS.get(self.compute_capability)
        return known[0] if known else None

    @property
    def has_flash_attention(self) -> bool:
        """Whether the flash kernels run on it. On AMD they do from CDNA 2 on (ROCm's
        Composable Kernel).
        """
        if self.compute_capability.startswith("gfx"):
            return self.compute_capability != "gfx908"
        major, minor = self.compute_capability.split(".")
        return (int(major), int(minor)) >= FLASH_CAPABILITY


def _card(line: str) -> GpuCard:
    name, capability, *numbers, source = line.split("|")
    size, speed, *rates = (0.0 if one == "-" else float(one) for one in numbers)
    fp32, fp16, bf16, fp8, generation, link = rates
    return GpuCard(
        name,
        capability,
        size,
        speed * GIGA,
        fp32 * TERA,
        fp16 * TERA,
        bf16 * TERA,
        fp8 * TERA,
        int(generation),
        link * GIGA,
        SOURCES[source],
    )


def _key(name: str) -> str:
    """Return a name without vendor words, in lower case."""
    short = " ".join(name.split())
    while _VENDOR.match(short):
        short = _VENDOR.sub("", short)
    return short.lower()


CARDS = tuple(_card(line) for line in _TABLE.strip().splitlines()[1:])
"""All cards, older architectures first."""
_BY_KEY = {_key(card.name): card for card in CARDS}
_BY_KEY |= {_key(word): _BY_KEY[_key(name)] for word, name in _COMMON_NAMES.items()}


@lru_cache(maxsize=1024)
def card_of(name: str) -> GpuCard | None:
    """Return the card with a name; None if it is not in the table.

    Args:
        name: as NVML or a framework reports it, or a class of GPUs of the portal.
            Vendor words and a memory size at the end are optional.

    >>> card_of("NVIDIA GeForce RTX 2080 Ti").fp16_flops / 1e12
    53.8
    >>> card_of("RTX 3090 24GB").nvlink_generation, card_of("Matrox G200")
    (3, None)
    """
    key = _key(name[:_LONGEST_NAME])
    return _BY_KEY.get(key) or _BY_KEY.get(_MEMORY.sub("", key))
