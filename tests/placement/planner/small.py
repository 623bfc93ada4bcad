"""Small models and a few Gpus, for trying everything out."""

from functools import lru_cache

from hypothesis import strategies as st

from placement.planner.model.families.config_json import parse_config
from placement.planner.search.memory_savings import PlanLimits
from tests.placement.planner.made import make_offer

AS_ASKED = PlanLimits(
    fused_optimizer=False,
    accumulation=False,
    checkpointing=False,
    small_optimizer=False,
    offload=False,
    quantization=False,
)


@lru_cache
def model(blocks):
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": 512,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": blocks,
            "intermediate_size": 1536,
            "vocab_size": 8000,
            "tie_word_embeddings": False,
        }
    )


cards = st.lists(
    st.tuples(
        st.sampled_from([0.8, 1.0, 1.3, 1.7, 2.4, 4.0]),
        st.sampled_from([35e12, 71e12]),
    ),
    min_size=2,
    max_size=4,
)
LINKS = ("", "all", "pairs", "switches")


def offers_of(drawn, links):
    """Gpus with NVLink between all, in pairs, or PCIe switches of two."""
    offers = []
    for index, (free, flops) in enumerate(drawn):
        group = {"all": "nv", "pairs": f"nv{index // 2}"}.get(links, "")
        twin = f"GPU-lab-a-{index ^ 1}"
        near = ((twin, "pix"),) if links == "switches" else ()
        offers.append(
            make_offer(
                index,
                free_gib=free,
                total_gib=24,
                peak_flops=flops,
                link_group=group,
                links=near,
            )
        )
    return offers
