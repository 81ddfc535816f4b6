"""Training settings by name: what they come to, and that whatever is said beside them wins."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from uvsdk import modality
from uvsdk.errors import SettingsError, UnknownNameError, WireError
from uvsdk.federation import algorithms, clipping, recipes
from uvsdk.federation.messages import TrainingConfig
from uvsdk_server.deployment import read_training

NAMED = {"deployment": "clinic", "modality": "voice", "backbone": "ge2e", "algorithm": "fedaws", "recipe": "voice-all"}


@pytest.mark.parametrize("name", list(recipes.RECIPES))
@pytest.mark.parametrize("algorithm", algorithms.names())
def test_every_recipe_is_a_configuration_that_a_server_takes(name: str, algorithm: str) -> None:
    recipe = recipes.get(name)
    config = recipes.configured({"deployment": "d", "backbone": "b", "algorithm": algorithm, "recipe": name})
    assert config.modality == recipe.modality in modality.names()
    algorithms.settings(algorithm, config.algorithm_settings)
    clipping.check_bounded(config)
    assert 0 < config.trust_ratio < 1
    assert recipe.purpose


def test_what_is_said_beside_a_recipe_wins() -> None:
    found = recipes.configured({**NAMED, "rounds": 7, "trust_ratio": 0.5, "algorithm_settings": {"step": 0.2}})
    assert (found.rounds, found.trust_ratio, found.algorithm_settings) == (7, 0.5, {"step": 0.2})
    assert (found.optimiser, found.gradient_clip, found.train) == ("adam", 10.0, "all")


def test_devices_approve_the_settings_and_not_the_name() -> None:
    found = recipes.configured(NAMED)
    spelt = TrainingConfig.from_json(found.to_json())
    assert spelt.digest() == found.digest()
    assert "recipe" not in json.loads(found.to_json())
    with pytest.raises(WireError, match="recipe"):
        TrainingConfig.from_json(json.dumps(NAMED))


def test_a_codebook_of_means_unless_another_is_named() -> None:
    fixed = {**NAMED, "algorithm": "fixed"}
    assert recipes.configured(fixed).algorithm_settings == {"initialisation": "centred_client_means"}
    drawn = recipes.configured({**fixed, "algorithm_settings": {"initialisation": "random"}})
    assert drawn.algorithm_settings == {"initialisation": "random"}
    assert recipes.configured(NAMED).algorithm_settings == {}


def test_without_a_recipe_nothing_is_added() -> None:
    plain = {name: value for name, value in NAMED.items() if name != "recipe"}
    assert recipes.configured(plain) == TrainingConfig.from_json(json.dumps(plain))


def test_an_unknown_recipe_names_those_there_are() -> None:
    there = "no recipe 'voices'; there are voice-head, voice-all, voice-centred, letters"
    with pytest.raises(UnknownNameError, match=there):
        recipes.configured({**NAMED, "recipe": "voices"})
    with pytest.raises(UnknownNameError, match="no recipe '3'"):
        recipes.configured({**NAMED, "recipe": 3})


def test_a_recipe_of_another_modality_is_refused() -> None:
    with pytest.raises(SettingsError, match="'face-head' is for face, the configuration says 'voice'"):
        recipes.configured({**NAMED, "recipe": "face-head"})
    with pytest.raises(SettingsError, match="algorithm_settings"):
        recipes.configured({**NAMED, "algorithm_settings": 3})


def test_the_table_of_the_documentation_is_this() -> None:
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+?) \|$", text, re.MULTILINE))
    assert {name: rows.get(name) for name in recipes.RECIPES} == {
        name: recipe.purpose for name, recipe in recipes.RECIPES.items()
    }


def test_the_operators_file_names_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(NAMED))
    (tmp_path / "a.toml").write_text("\n".join(f'{name} = "{value}"' for name, value in NAMED.items()))
    assert read_training(tmp_path / "a.json") == read_training(tmp_path / "a.toml") == recipes.configured(NAMED)
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(WireError, match="JSON object"):
        read_training(tmp_path / "b.json")
