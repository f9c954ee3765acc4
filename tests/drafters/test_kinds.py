"""Who proposes, by name: every name that may be given has a drafter, and what is no name is refused in one line."""

import pytest

from octavo.config import SPECULATE, EngineConfig, speculates
from octavo.drafters.kinds import KINDS
from octavo.errors import UsageError


def test_every_name_has_a_drafter():
    assert [name.partition(":")[0] for name in SPECULATE] == list(KINDS)


@pytest.mark.parametrize("name", [name for name in SPECULATE if ":" not in name])
def test_a_kind_alone_takes_no_argument(name):
    assert speculates(name) and not speculates(f"{name}:") and not speculates(f"{name}:x")


@pytest.mark.parametrize("name", ["", "none", "OFF", "model", "model:", ":x", None, 3, True, ["off"]])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UsageError, match=r"speculate .* is not one of off, ngram") as caught:
        EngineConfig(model="x", speculate=name)
    assert caught.value.param == "speculate" and "\n" not in str(caught.value)
