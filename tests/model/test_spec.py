import subprocess
import sys

import pytest

from nearlm.base.errors import OptionError
from nearlm.model import ModelSpec
from nearlm.model.pretrained import load_pretrained


def test_a_spec_without_a_model_cannot_be_loaded():
    with pytest.raises(OptionError, match="no model was given; name one with `model`"):
        load_pretrained(ModelSpec())


def test_a_spec_can_be_imported_without_torch():
    code = "import sys; from nearlm.model import ModelSpec; print('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
