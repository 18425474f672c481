"""Every encoder of the folder, how one is chosen, and how one comes from outside."""

import ast
import dataclasses
import importlib
import pkgutil
import sys
import types
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch
from torch import nn

from appo.algorithms.models import encoders, layers
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.encoder_registry import choose_encoder, encoder_names, find_encoder, register_encoder
from appo.algorithms.models.encoders import conv_medium, conv_nature, conv_small, minigrid_tiny, mlp, resnet_impala
from appo.algorithms.models.observation_encoder import CategoryEncoder
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError

FILES = sorted(module.name for module in pkgutil.iter_modules(encoders.__path__))
ACTIONS = (ActionLeaf("discrete", 2),)


def image(height, width, channels=3):
    return ObservationLeaf("obs", (channels, height, width), "uint8", "image")


VECTOR = ObservationLeaf("obs", (6,), "float32", "vector")


class Halves(nn.Module):
    """An encoder from outside: the first half of a vector, scaled."""

    kind: ClassVar[Literal["image", "vector"]] = "vector"
    minimum_size: ClassVar[int] = 1

    def __init__(self, leaf, config):
        super().__init__()
        self.output_size = leaf.shape[0] // 2
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x[:, : self.output_size]


@pytest.fixture
def registered():
    register_encoder("halves", Halves)
    yield "halves"
    del sys.modules["appo.algorithms.models.encoders.halves"]


@pytest.mark.parametrize("name", FILES)
def test_every_file_builds_runs_learns_and_says_what_it_is(name):
    module = importlib.import_module(f"appo.algorithms.models.encoders.{name}")
    encoder_type = module.Encoder
    size = encoder_type.minimum_size
    leaves = [VECTOR] if encoder_type.kind == "vector" else [image(size, size), image(size + 5, size + 2, channels=4)]
    for leaf in leaves:
        encoder = encoder_type(leaf, ModelConfig(mlp_layers="16,8"))
        x = torch.rand(3, *leaf.shape).contiguous(
            memory_format=torch.channels_last if leaf.kind == "image" else torch.contiguous_format
        )
        output = encoder(x)
        assert output.shape == (3, encoder.output_size)
        output.square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in encoder.parameters())
        assert not torch.allclose(encoder(x.flip(0)), output)
    assert issubclass(encoder_type, nn.Module) and encoder_type.kind in ("image", "vector")
    assert module.__doc__ and len(module.__doc__) > 40 and len(encoder_type.__doc__) > 10


def test_a_file_without_the_class_is_told_with_those_that_it_has(tmp_path, monkeypatch):
    lines = "class Wide:\n    kind, minimum_size = 'vector', 1\n\nclass Other: pass\n"
    (tmp_path / "wide_alone.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(ConfigError, match=r"wide_alone has no class Encoder; it has wide_alone:Wide$"):
        find_encoder("wide_alone")
    with pytest.raises(ConfigError, match=r"wide_alone has no class Wid; it has wide_alone:Wide$"):
        find_encoder("wide_alone:Wid")
    assert find_encoder("wide_alone:Wide").minimum_size == 1


@pytest.mark.parametrize("name", FILES)
def test_an_encoder_says_truly_how_small_an_image_may_be(name):
    encoder = find_encoder(name)
    if encoder.kind == "vector":
        assert encoder.minimum_size == 1
    elif encoder.minimum_size > 1:
        leaf = image(encoder.minimum_size - 1, 100)
        with pytest.raises(RuntimeError):
            encoder(leaf, ModelConfig())(torch.rand(1, *leaf.shape))
    else:
        assert encoder(image(1, 1), ModelConfig())(torch.rand(1, 3, 1, 1)).shape[0] == 1


@pytest.mark.parametrize(
    "leaf, module",
    [
        (VECTOR, mlp),
        (image(84, 84, 4), conv_nature),
        (image(72, 128), conv_medium),
        (image(36, 36), conv_medium),
        (image(7, 7), minigrid_tiny),
        (image(3, 3), conv_small),
        (image(24, 24), conv_small),
        (image(35, 200), conv_small),
        (image(8, 200), conv_small),
    ],
)
def test_auto_chooses_by_kind_and_size(leaf, module):
    assert choose_encoder(leaf, ModelConfig()) is module.Encoder


def test_a_named_encoder_reads_its_kind_and_the_rest_is_automatic():
    config = ModelConfig(encoder="resnet_impala")
    assert choose_encoder(image(84, 84), config) is resnet_impala.Encoder
    assert choose_encoder(VECTOR, config) is mlp.Encoder


def test_a_small_image_is_refused_with_encoders_that_fit():
    with pytest.raises(ConfigError, match=r"at least 36x36, observation 'obs' is 9x40; these fit: .*resnet_impala"):
        choose_encoder(image(9, 40), ModelConfig(encoder="conv_simple"))


def test_an_encoder_with_nothing_to_read_is_refused():
    with pytest.raises(ConfigError, match=r"obs \(vector\); these fit: auto, mlp"):
        build_actor_critic(ModelConfig(encoder="conv_simple"), EnvSpec((VECTOR,), ACTIONS, 1))


@pytest.mark.parametrize("name", ["conv_simpel", "missing.module:Encoder", "torch:NoSuchClass", ":Encoder"])
def test_an_unknown_encoder_is_refused(name):
    with pytest.raises(ConfigError, match=f"encoder='{name}'"):
        find_encoder(name)


@pytest.mark.parametrize(
    "text, told",
    [
        ("import nothing_that_is_installed", "ModuleNotFoundError: No module named 'nothing_that_is_installed'"),
        ("Encoder = = 3", "SyntaxError: invalid syntax"),
        ("raise SystemError('not today')", "SystemError: not today"),
        ("Encoder = 3", "needs a class attribute kind"),
        ("class Encoder: kind = 'vector'", "and a class attribute minimum_size"),
    ],
)
def test_a_module_that_is_no_encoder_s_is_refused(tmp_path, monkeypatch, text, told):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brought_along", raising=False)
    (tmp_path / "brought_along.py").write_text(text)
    with pytest.raises(ConfigError, match=told):
        find_encoder("brought_along:Encoder")


def test_a_registered_encoder_is_used_and_listed(registered):
    model = build_actor_critic(ModelConfig(encoder=registered, use_rnn=False), EnvSpec((VECTOR,), ACTIONS, 1))
    assert any(isinstance(module, Halves) for module in model.modules())
    assert registered in encoder_names()


def test_an_encoder_of_vectors_is_not_asked_to_read_what_no_environment_shows(registered):
    config = ModelConfig(encoder=registered)
    assert choose_encoder(VECTOR, config) is Halves
    assert choose_encoder(ELAPSED_STEPS, config) is mlp.Encoder


def test_an_encoder_of_vectors_reads_categories_and_one_of_images_leaves_them_to_the_usual_one(registered):
    rooms = ObservationLeaf("rooms", (2,), "int64", "categorical", 8)
    spec = EnvSpec((rooms,), ACTIONS, 1)
    model = build_actor_critic(ModelConfig(encoder=registered, encoder_extra_fc_layers=0, use_rnn=False), spec)
    assert [type(module) for module in model.modules() if getattr(module, "kind", "") == "vector"] == [Halves]
    observations = {"rooms": torch.tensor([[3, 0], [3, 5], [4, 0]])}
    parameters = model.act(observations, torch.zeros(3, 0)).parameters
    torch.testing.assert_close(parameters[0], parameters[1])  # it reads the first half: the first room
    assert not torch.allclose(parameters[0], parameters[2])
    assert type(CategoryEncoder(rooms, ModelConfig(encoder="conv_small")).encoder) is mlp.Encoder


def test_a_path_names_an_encoder_in_any_importable_module(monkeypatch):
    module = types.ModuleType("somewhere_else")
    module.__dict__["Halves"] = Halves
    monkeypatch.setitem(sys.modules, "somewhere_else", module)
    assert find_encoder("somewhere_else:Halves") is Halves


@pytest.mark.parametrize("name", ["auto", "mlp", "not a name"])
def test_a_registration_cannot_take_a_name_that_is_in_use(name):
    with pytest.raises(ConfigError, match="taken"):
        register_encoder(name, Halves)


def test_images_are_shifted_and_scaled_as_the_options_say():
    leaf = image(7, 7)
    spec = EnvSpec((leaf,), ACTIONS, 1)
    config = ModelConfig(use_rnn=False, obs_subtract_mean=10.0, obs_scale=4.0, precision="fp32")
    images = torch.randint(0, 256, (2, 3, 7, 7), dtype=torch.uint8)
    original = images.clone()
    model = build_actor_critic(config, spec)
    (prepared,) = model.preprocessor({"obs": images})
    torch.testing.assert_close(prepared, images.float() - 10.0)  # the encoder divides, by way of its weight
    divided, undivided = (build_actor_critic(dataclasses.replace(config, obs_scale=s), spec) for s in (4.0, 1.0))
    divided.load_state_dict(undivided.state_dict())
    features = [trained.trunks[0].encoder for trained in (divided, undivided)]
    torch.testing.assert_close(features[0]([prepared]), features[1]([prepared / 4.0]))
    assert torch.equal(images, original) and prepared.is_contiguous(memory_format=torch.channels_last)
    floating = torch.rand(2, 3, 7, 7)
    untouched = floating.clone()
    build_actor_critic(config, spec).preprocessor({"obs": floating})
    assert torch.equal(floating, untouched), "the block's own memory was scaled"


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 2])
def test_images_of_one_channel_are_convolved_in_the_order_of_the_others(channels, dtype):
    leaf = ObservationLeaf("obs", (channels, 16, 16), dtype, "image")
    encoder = conv_small.Encoder(leaf, ModelConfig())
    images = torch.ones(6, channels, 16, 16, dtype=getattr(torch, dtype))
    convolved = encoder.layers[0](images)
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    assert encoder.layers[-1](convolved).data_ptr() == convolved.data_ptr(), "flattening copied"


def test_small_images_in_parts_have_the_features_that_they_have_at_once(monkeypatch):
    leaf = image(16, 16, channels=1)
    torch.manual_seed(0)
    encoder, images = conv_small.Encoder(leaf, ModelConfig()), torch.rand(150, 1, 16, 16)
    parts = []
    encoder.layers[0].register_forward_hook(lambda layer, inputs, output: parts.append(len(output)))
    at_once = encoder(images)
    assert parts == [150]
    monkeypatch.setattr(layers, "_PIXELS_AT_ONCE", 0)
    torch.testing.assert_close(encoder(images), at_once)
    assert parts == [150, 50, 50, 50]


def test_large_images_are_encoded_in_equal_parts_twice_as_large_in_bf16():
    encoder, parts = conv_small.Encoder(image(84, 84), ModelConfig()), []
    encoder.layers[0].register_forward_hook(lambda layer, inputs, output: parts.append(len(output)))
    encoder(torch.rand(129, 3, 84, 84))
    with torch.autocast("cpu", torch.bfloat16):
        encoder(torch.rand(129, 3, 84, 84))
    assert parts == [43, 43, 43, 65, 64]


def test_the_room_knows_no_processes_no_gymnasium_and_no_neighbours():
    forbidden = {"multiprocessing", "threading", "queue", "socket", "subprocess", "gymnasium"}
    neighbours = ("appo.algorithms.learning", "appo.algorithms.memory", "appo.algorithms.checkpoints")
    files = list(Path(encoders.__path__[0]).parent.rglob("*.py"))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in forbidden or name.startswith(neighbours) for name in names), path
    assert len(files) > 15


@pytest.mark.parametrize(
    "module, side",
    [(conv_small, side) for side in (13, 16, 24, 29, 32)] + [(conv_medium, side) for side in (36, 37, 38, 39, 48)],
)
def test_images_of_any_size_are_seen_to_their_edges(module, side):
    torch.manual_seed(0)
    encoder = module.Encoder(image(side, side, channels=1), ModelConfig())
    along = torch.arange(side)
    one_lit = torch.zeros(2, side, 1, side, side)
    one_lit[0, along, 0, along, side // 2] = one_lit[1, along, 0, side // 2, along] = 255.0
    one_lit = one_lit.flatten(0, 1)
    with torch.no_grad():
        change = encoder(one_lit) - encoder(torch.zeros(1, 1, side, side))
    assert (change.abs().amax(1) > 1e-3).all()


def test_numbers_of_a_category_have_the_size_of_normalised_ones():
    leaf = ObservationLeaf("rooms", (2,), "int64", "categorical", 9)
    encoder = CategoryEncoder(leaf, ModelConfig(mlp_layers="16"))
    read = []
    assert isinstance(encoder.encoder, nn.Module)
    encoder.encoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    encoder(torch.cartesian_prod(torch.arange(9), torch.arange(9)))
    assert read[0].square().mean(0) == pytest.approx(torch.ones(18))
