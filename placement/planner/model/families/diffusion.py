"""Readers for configurations of diffusers: FLUX, Stable Diffusion 3, DiT, and the UNets
of Stable Diffusion 1, 2 and XL.

The names and sizes of the tensors are those of diffusers 0.42's classes. The tokens of
a sample are the positions of its image, and of the text beside it. Each matrix is
guessed to keep its input and output for each of them. Vectors that are made once for
each image (times, modulations) count once.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from placement.planner.model.config_reader import ConfigFields, check_size
from placement.planner.model.families.config_fields import MAX_BLOCKS
from placement.planner.model.families.tensor_list import TensorList, sizes
from placement.planner.model.spec import DTYPE_BYTES, ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

FLUX_IMAGE_TOKENS = 4096
"""An image of 1,024 x 1,024 pixels has 64 x 64 tokens (FLUX.1's pipeline)."""
FLUX_TEXT_TOKENS = 512
CLIP_TOKENS = 77
"""A prompt for CLIP's text model, padded."""
SD3_TEXT_TOKENS = CLIP_TOKENS + 256
"""Of CLIP and of T5 (Stable Diffusion 3's pipeline)."""
TIME_CHANNELS = 256
_Entry = TypeVar("_Entry", int, bool)
ONCE = 1.0


def parse_diffusers(config: Mapping[str, Any], *, name: str = "") -> ModelSpec:
    """Return the ModelSpec of a configuration of diffusers.

    Raises:
        SpecInvalid: by field, also for a class that is not in CLASSES.
    """
    check_size(config)
    fields = ConfigFields(config)
    given = fields.word("_class_name")
    fields.finish()
    reader = CLASSES.get(given)
    if reader is None:
        raise SpecInvalid(
            {
                "_class_name": sentence(
                    "'{given}' is a class of diffusers that is not known here; known: "
                    "{known}; give the model's .safetensors file, or name a "
                    "module:callable that returns the model",
                    given=given[:60],
                    known=", ".join(CLASSES),
                )
            }
        )
    found = reader(fields)
    fields.finish()
    note = sentence(
        "A sample counts as {tokens} tokens, whatever the sequence length.",
        tokens=f"{found.sample_tokens:,}",
    )
    return found.spec(given, (note,), name=name)


def flux(fields: ConfigFields) -> TensorList:
    """FluxTransformer2DModel: blocks of image and text side by side, then joined."""
    head = fields.whole("attention_head_dim", default=128, high=2**12)
    heads = fields.whole("num_attention_heads", default=24, high=2**12)
    width = head * heads
    channels = fields.whole("in_channels", default=64, high=2**14)
    pooled = fields.whole("pooled_projection_dim", default=768, high=2**16)
    joint = fields.whole("joint_attention_dim", default=4096, high=2**16)
    patch = fields.whole("patch_size", default=1, high=2**8)
    out = fields.whole("out_channels", default=channels, high=2**14)
    found = TensorList(
        DTYPE_BYTES["bf16"], sample_tokens=FLUX_IMAGE_TOKENS + FLUX_TEXT_TOKENS
    )
    _times(found, width, pooled, guided=fields.flag("guidance_embeds"))
    image, text = float(FLUX_IMAGE_TOKENS), float(FLUX_TEXT_TOKENS)
    found.linear("context_embedder", width, joint, bias=True, tokens=text)
    found.linear("x_embedder", width, channels, bias=True, tokens=image)
    for number in range(fields.whole("num_layers", default=19, high=MAX_BLOCKS)):
        name = f"transformer_blocks.{number}"
        for side, tokens in (("", image), ("_context", text)):
            found.linear(
                f"{name}.norm1{side}.linear", 6 * width, width, bias=True, tokens=ONCE
            )
            _feed_forward(found, f"{name}.ff{side}", width, tokens)
        _joint_attention(found, f"{name}.attn", width, (image, text), head)
    count = fields.whole("num_single_layers", default=38, high=MAX_BLOCKS)
    for number in range(count):
        name = f"single_transformer_blocks.{number}"
        found.linear(f"{name}.norm.linear", 3 * width, width, bias=True, tokens=ONCE)
        found.linear(f"{name}.proj_mlp", 4 * width, width, bias=True)
        found.linear(f"{name}.proj_out", width, 5 * width, bias=True)
        for part in ("to_q", "to_k", "to_v"):
            found.linear(f"{name}.attn.{part}", width, width, bias=True)
        for part in ("norm_q", "norm_k"):
            found.add(f"{name}.attn.{part}.weight", head)
    _last(found, width, patch**2 * out, image)
    return found


def stable_diffusion_3(fields: ConfigFields) -> TensorList:
    """SD3Transformer2DModel, 3.0 and 3.5."""
    head = fields.whole("attention_head_dim", default=64, high=2**12)
    heads = fields.whole("num_attention_heads", default=18, high=2**12)
    width = head * heads
    side = fields.whole("sample_size", default=128, high=2**12)
    patch = fields.whole("patch_size", default=2, high=2**8)
    channels = fields.whole("in_channels", default=16, high=2**14)
    out = fields.whole("out_channels", default=16, high=2**14)
    joint = fields.whole("joint_attention_dim", default=4096, high=2**16)
    caption = fields.whole("caption_projection_dim", default=1152, high=2**16)
    pooled = fields.whole("pooled_projection_dim", default=2048, high=2**16)
    normed = fields.word("qk_norm")
    count = fields.whole("num_layers", default=18, high=MAX_BLOCKS)
    twice = fields.peek("dual_attention_layers")
    twice = twice if isinstance(twice, list) else []
    image = float(max(1, side // patch) ** 2)
    text = float(SD3_TEXT_TOKENS)
    found = TensorList(DTYPE_BYTES["bf16"], sample_tokens=int(image + text))
    found.convolution("pos_embed.proj", width, channels, patch, patch, tokens=image)
    _times(found, width, pooled, guided=False)
    found.linear("context_embedder", caption, joint, bias=True, tokens=text)
    for number in range(count):
        name, last = f"transformer_blocks.{number}", number == count - 1
        rows = 9 if number in twice else 6
        found.linear(
            f"{name}.norm1.linear", rows * width, width, bias=True, tokens=ONCE
        )
        found.linear(
            f"{name}.norm1_context.linear",
            (2 if last else 6) * width,
            width,
            bias=True,
            tokens=ONCE,
        )
        _joint_attention(
            found,
            f"{name}.attn",
            width,
            (image, text),
            head if normed else 0,
            last=last,
        )
        if number in twice:
            for part in ("to_q", "to_k", "to_v", "to_out.0"):
                found.linear(
                    f"{name}.attn2.{part}", width, width, bias=True, tokens=image
                )
            for part in ("norm_q", "norm_k") if normed else ():
                found.add(f"{name}.attn2.{part}.weight", head)
        _feed_forward(found, f"{name}.ff", width, image)
        if not last:
            _feed_forward(found, f"{name}.ff_context", width, text)
    _last(found, width, patch**2 * out, image)
    return found


def diffusion_transformer(fields: ConfigFields) -> TensorList:
    """DiTTransformer2DModel: DiT (arXiv:2212.09748), which draws classes of images.

    Each block has its own embedding of time and class, unlike the paper's code, so
    DiT-XL/2 has 750 M parameters in diffusers and 675 M in the paper. Files from before
    diffusers 0.30 name the class Transformer2DModel.
    """
    kind = fields.word("norm_type", default="ada_norm_zero")
    fields.require("norm_type", kind == "ada_norm_zero", "must be ada_norm_zero")
    head = fields.whole("attention_head_dim", default=72, high=2**12)
    width = head * fields.whole("num_attention_heads", default=16, high=2**12)
    side = fields.whole("sample_size", default=32, high=2**12)
    patch = fields.whole("patch_size", default=2, high=2**8)
    channels = fields.whole("in_channels", default=4, high=2**14)
    outputs = fields.whole("out_channels", default=channels, high=2**14)
    classes = fields.whole("num_embeds_ada_norm", default=1000, high=2**20)
    image = float(max(1, side // patch) ** 2)
    found = TensorList(DTYPE_BYTES["fp32"], sample_tokens=int(image))
    found.convolution("pos_embed.proj", width, channels, patch, patch, tokens=image)
    for number in range(fields.whole("num_layers", default=28, high=MAX_BLOCKS)):
        name = f"transformer_blocks.{number}"
        times = f"{name}.norm1.emb.timestep_embedder"
        found.linear(f"{times}.linear_1", width, TIME_CHANNELS, bias=True, tokens=ONCE)
        found.linear(f"{times}.linear_2", width, width, bias=True, tokens=ONCE)
        # One more: no class, for guidance.
        table = f"{name}.norm1.emb.class_embedder.embedding_table.weight"
        found.add(table, classes + 1, width)
        found.linear(f"{name}.norm1.linear", 6 * width, width, bias=True, tokens=ONCE)
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            found.linear(f"{name}.attn1.{part}", width, width, bias=True, tokens=image)
        _feed_forward(found, f"{name}.ff", width, image)
    found.linear("proj_out_1", 2 * width, width, bias=True, tokens=ONCE)
    found.linear("proj_out_2", patch**2 * outputs, width, bias=True, tokens=image)
    return found


def _times(found: TensorList, width: int, pooled: int, *, guided: bool) -> None:
    inputs = {"timestep_embedder": TIME_CHANNELS}
    if guided:
        inputs["guidance_embedder"] = TIME_CHANNELS
    for part, size in (inputs | {"text_embedder": pooled}).items():
        name = f"time_text_embed.{part}"
        found.linear(f"{name}.linear_1", width, size, bias=True, tokens=ONCE)
        found.linear(f"{name}.linear_2", width, width, bias=True, tokens=ONCE)


def _joint_attention(
    found: TensorList,
    name: str,
    width: int,
    tokens: tuple[float, float],
    head: int,
    *,
    last: bool = False,
) -> None:
    """Add the attention of image and text. `head`: size of the norms; 0: none.

    Args:
        last: the text has no output.
    """
    image, text = tokens
    for part in ("to_q", "to_k", "to_v", "to_out.0"):
        found.linear(f"{name}.{part}", width, width, bias=True, tokens=image)
    made = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    for part in made[:3] if last else made:
        found.linear(f"{name}.{part}", width, width, bias=True, tokens=text)
    norms = ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
    for part in norms if head else ():
        found.add(f"{name}.{part}.weight", head)


def _feed_forward(found: TensorList, name: str, width: int, tokens: float) -> None:
    found.linear(f"{name}.net.0.proj", 4 * width, width, bias=True, tokens=tokens)
    found.linear(f"{name}.net.2", width, 4 * width, bias=True, tokens=tokens)


def _last(found: TensorList, width: int, outputs: int, tokens: float) -> None:
    found.linear("norm_out.linear", 2 * width, width, bias=True, tokens=ONCE)
    found.linear("proj_out", outputs, width, bias=True, tokens=tokens)


DOWN = {"DownBlock2D": False, "CrossAttnDownBlock2D": True}
UP = {"UpBlock2D": False, "CrossAttnUpBlock2D": True}
"""Blocks of a UNet, and whether they have attention."""


class _UNet:
    """The tensors of one UNet, level by level."""

    def __init__(self, fields: ConfigFields) -> None:
        self.channels = sizes(
            fields, "block_out_channels", default=(320, 640, 1280, 1280)
        )
        count = len(self.channels)
        self.deep = self._depths(fields, count)
        self.layers = fields.whole("layers_per_block", default=2, high=64)
        self.cross = fields.whole("cross_attention_dim", default=1280, high=2**16)
        self.side = fields.whole("sample_size", default=64, high=2**12)
        self.attends_down = self._kinds(fields, "down_block_types", DOWN, count)
        self.attends_up = self._kinds(fields, "up_block_types", UP, count)
        self.flat = fields.flag("use_linear_projection")
        self.time = 4 * self.channels[0]
        self.found = TensorList(DTYPE_BYTES["fp32"], sample_tokens=self.side**2)

    @staticmethod
    def _depths(fields: ConfigFields, count: int) -> tuple[int, ...]:
        """Return the transformer blocks of each level."""
        if not isinstance(fields.peek("transformer_layers_per_block"), list):
            one = fields.whole("transformer_layers_per_block", default=1, high=64)
            return (one,) * count
        found = sizes(
            fields, "transformer_layers_per_block", default=(1,) * count, high=64
        )
        return _of_length(fields, "transformer_layers_per_block", found, count)

    @staticmethod
    def _kinds(
        fields: ConfigFields, name: str, known: Mapping[str, bool], count: int
    ) -> tuple[bool, ...]:
        """Return whether each block has attention."""
        plain, attends = known
        usual = [attends] * (count - 1)
        usual = [*usual, plain] if known is DOWN else [plain, *usual]
        given = fields.peek(name)
        given = usual if given is None else given
        good = isinstance(given, list) and all(
            isinstance(one, str) and one in known for one in given
        )
        fields.require(
            name, good, sentence("must be a list of {known}", known=", ".join(known))
        )
        found = tuple(known[one] for one in given) if good else (False,) * count
        return _of_length(fields, name, found, count)

    def tokens(self, level: int) -> float:
        """Return the positions of a level, whose sides halve from one to the next."""
        return float(max(1, self.side >> level) ** 2)

    def residual(self, name: str, inputs: int, outputs: int, level: int) -> None:
        """Add two convolutions, their norms, the time and the shortcut."""
        found, tokens = self.found, self.tokens(level)
        found.norm(f"{name}.norm1", inputs, tokens)
        found.convolution(f"{name}.conv1", outputs, inputs, 3, 3, tokens=tokens)
        found.linear(
            f"{name}.time_emb_proj", outputs, self.time, bias=True, tokens=ONCE
        )
        found.norm(f"{name}.norm2", outputs, tokens)
        found.convolution(f"{name}.conv2", outputs, outputs, 3, 3, tokens=tokens)
        if inputs != outputs:
            found.convolution(
                f"{name}.conv_shortcut", outputs, inputs, 1, 1, tokens=tokens
            )

    def transformer(self, name: str, width: int, level: int, depth: int) -> None:
        """Add blocks of self-attention, attention to the text, and a gated MLP."""
        found, tokens = self.found, self.tokens(level)
        found.norm(f"{name}.norm", width, tokens)
        self._edge(f"{name}.proj_in", width, tokens)
        for number in range(depth):
            block = f"{name}.transformer_blocks.{number}"
            for norm in ("norm1", "norm2", "norm3"):
                found.norm(f"{block}.{norm}", width, tokens)
            for part, inputs in (("attn1", width), ("attn2", self.cross)):
                found.linear(
                    f"{block}.{part}.to_q", width, width, bias=False, tokens=tokens
                )
                read = tokens if part == "attn1" else float(CLIP_TOKENS)
                for one in ("to_k", "to_v"):
                    found.linear(
                        f"{block}.{part}.{one}", width, inputs, bias=False, tokens=read
                    )
                found.linear(
                    f"{block}.{part}.to_out.0", width, width, bias=True, tokens=tokens
                )
            found.linear(
                f"{block}.ff.net.0.proj", 8 * width, width, bias=True, tokens=tokens
            )
            found.linear(
                f"{block}.ff.net.2", width, 4 * width, bias=True, tokens=tokens
            )
        self._edge(f"{name}.proj_out", width, tokens)

    def _edge(self, name: str, width: int, tokens: float) -> None:
        if self.flat:
            self.found.linear(name, width, width, bias=True, tokens=tokens)
        else:
            self.found.convolution(name, width, width, 1, 1, tokens=tokens)

    def down(self) -> None:
        """Add the blocks that halve the image."""
        before = self.channels[0]
        for level, width in enumerate(self.channels):
            name = f"down_blocks.{level}"
            for number in range(self.layers):
                self.residual(f"{name}.resnets.{number}", before, width, level)
                before = width
                if self.attends_down[level]:
                    self.transformer(
                        f"{name}.attentions.{number}", width, level, self.deep[level]
                    )
            if level < len(self.channels) - 1:
                self.found.convolution(
                    f"{name}.downsamplers.0.conv",
                    width,
                    width,
                    3,
                    3,
                    tokens=self.tokens(level + 1),
                )

    def middle(self) -> None:
        """Add the block of the smallest image."""
        level, width = len(self.channels) - 1, self.channels[-1]
        self.residual("mid_block.resnets.0", width, width, level)
        self.transformer("mid_block.attentions.0", width, level, self.deep[-1])
        self.residual("mid_block.resnets.1", width, width, level)

    def up(self) -> None:
        """Add the blocks that double the image and read the outputs of `down`."""
        widths, top = self.channels[::-1], len(self.channels) - 1
        before = widths[0]
        for place, width in enumerate(widths):
            level, name = top - place, f"up_blocks.{place}"
            skipped = widths[min(place + 1, top)]
            for number in range(self.layers + 1):
                beside = skipped if number == self.layers else width
                self.residual(f"{name}.resnets.{number}", before + beside, width, level)
                before = width
                if self.attends_up[place]:
                    self.transformer(
                        f"{name}.attentions.{number}", width, level, self.deep[level]
                    )
            if level:
                self.found.convolution(
                    f"{name}.upsamplers.0.conv",
                    width,
                    width,
                    3,
                    3,
                    tokens=self.tokens(level - 1),
                )


def _of_length(
    fields: ConfigFields, name: str, given: tuple[_Entry, ...], count: int
) -> tuple[_Entry, ...]:
    fields.require(
        name,
        len(given) == count,
        sentence(
            "{given} entries for {count} levels of block_out_channels",
            given=len(given),
            count=count,
        ),
    )
    return given if len(given) == count else (given or ())[:1] * count


def unet(fields: ConfigFields) -> TensorList:
    """UNet2DConditionModel of Stable Diffusion 1, 2 and XL."""
    made = _UNet(fields)
    found, first = made.found, made.channels[0]
    whole = made.tokens(0)
    inputs = fields.whole("in_channels", default=4, high=2**12)
    outputs = fields.whole("out_channels", default=4, high=2**12)
    found.convolution("conv_in", first, inputs, 3, 3, tokens=whole)
    found.linear("time_embedding.linear_1", made.time, first, bias=True, tokens=ONCE)
    found.linear(
        "time_embedding.linear_2", made.time, made.time, bias=True, tokens=ONCE
    )
    if fields.word("addition_embed_type"):
        size = fields.whole("projection_class_embeddings_input_dim", high=2**16)
        found.linear("add_embedding.linear_1", made.time, size, bias=True, tokens=ONCE)
        found.linear(
            "add_embedding.linear_2", made.time, made.time, bias=True, tokens=ONCE
        )
    made.down()
    made.middle()
    made.up()
    found.norm("conv_norm_out", first, whole)
    found.convolution("conv_out", outputs, first, 3, 3, tokens=whole)
    return found


CLASSES: Mapping[str, Callable[[ConfigFields], TensorList]] = {
    "DiTTransformer2DModel": diffusion_transformer,
    "FluxTransformer2DModel": flux,
    "SD3Transformer2DModel": stable_diffusion_3,
    "Transformer2DModel": diffusion_transformer,
    "UNet2DConditionModel": unet,
}
