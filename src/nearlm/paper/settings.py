"""The settings of the paper's experiments: which LM, which texts, how much of them, what the paper itself found."""

from dataclasses import dataclass, replace

from nearlm.base import Json, OptionError
from nearlm.paper.results import PaperRow
from nearlm.text import TextSource

TRAINED = "trained-here"  # a small LM that is trained from scratch on the setting's own training text
_FEWEST = 2000  # tokens of a store


@dataclass(frozen=True)
class Setting:
    """One experiment: an LM, a store of its training text, and the texts it is tuned and tested on."""

    name: str
    title: str
    text: str
    model: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    store: str | None = None
    max_tokens: int | None = None
    pack: bool = False
    valid_tokens: int | None = 20_000
    test_tokens: int | None = 20_000
    sweep_tokens: int | None = 12_000
    timed_tokens: int = 4_000
    rounds: int = 3
    keeps: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    dims: tuple[int, ...] = (32, 64, 128, 256, 384, 512)
    ks: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    prompt: str = ""
    paper: tuple[PaperRow, ...] = ()

    @property
    def valid_source(self) -> TextSource:
        """The text to tune on."""
        return TextSource(self.valid, max_tokens=self.valid_tokens)

    @property
    def test_source(self) -> TextSource:
        """The text to test on."""
        return TextSource(self.test, max_tokens=self.test_tokens)


_WIKITEXT = (
    PaperRow("NLM", 18.66, 3847.0),
    PaperRow("kNN-LM", 16.65, 277.0),
    PaperRow("+ AR", 16.67, 530.0),
    PaperRow("+ GM", 16.86, 446.0),
    PaperRow("+ DR", 16.40, 991.0),
    PaperRow("+ All", 16.67, 1835.0),
)
_LAW = (
    PaperRow("NLM", 106.56, 27800.0),
    PaperRow("kNN-LM", 12.64, 1052.0),
    PaperRow("+ AR", 12.74, 1290.0),
    PaperRow("+ GM", 13.33, 1451.0),
    PaperRow("+ DR", 11.59, 3420.0),
    PaperRow("+ All", 12.29, 5708.0),
)

DEMO = Setting(
    name="demo",
    title="A memory of licence texts for SmolLM2-135M",
    text="SmolLM2-135M was not trained to know licence texts by heart. Its memory holds the first tokens of some "
    "hundred licences; licences of other families are the test.",
    model="smollm2-135m",
    train=("spdx:train",),
    valid=("spdx:valid",),
    test=("spdx:test",),
    max_tokens=100_000,
    valid_tokens=10_100,  # from 10,000 on an adaptor has enough to learn from
    test_tokens=5_000,
    timed_tokens=1_000,
    rounds=3,
    prompt="Redistribution and use in source and binary forms, with or without modification, are permitted provided",
    paper=_LAW,
)

SETTINGS = {
    "domain": replace(
        DEMO,
        name="domain",
        title="A model that never saw the domain: SmolLM2-135M on licence texts",
        text="As Law-MT in the paper: the LM was not trained on the store's text. The store holds all licences of the "
        "training split; validation and test are licences of other families.",
        store="cache:smollm2-spdx",
        max_tokens=None,
        valid_tokens=None,
        test_tokens=20_000,
        timed_tokens=2_000,
        rounds=9,
    ),
    "standard": Setting(
        name="standard",
        title="A model that was trained on the store's text: a small LM on the manuals of Django and SQLAlchemy",
        text="As WikiText-103 in the paper: the LM was trained on the very text that the store holds. It is small and "
        "fast, so that searching, not the LM, takes most of the time, as on the paper's GPU.",
        model=TRAINED,
        train=("pydocs:train",),
        valid=("pydocs:valid",),
        test=("pydocs:test",),
        store="cache:pydocs-small",
        valid_tokens=60_000,
        test_tokens=30_000,
        sweep_tokens=20_000,
        timed_tokens=4_000,
        rounds=9,
        dims=(32, 64, 128, 192),
        prompt="To create a new model, define a class that",
        paper=_WIKITEXT,
    ),
    "wikitext103": Setting(
        name="wikitext103",
        title="WikiText-103 at the paper's scale",
        text="GPT-2 fine-tuned on WikiText-103 and a store of its training tokens; needs a GPU and the model hub.",
        model="neulab/gpt2-finetuned-wikitext103",
        train=("hf:Salesforce/wikitext/wikitext-103-raw-v1:train",),
        valid=("hf:Salesforce/wikitext/wikitext-103-raw-v1:validation",),
        test=("hf:Salesforce/wikitext/wikitext-103-raw-v1:test",),
        pack=True,  # every paragraph is a document there
        valid_tokens=None,
        test_tokens=None,
        sweep_tokens=None,
        timed_tokens=20_000,
        dims=(64, 128, 256, 512, 768),
        prompt="The first edition of the book",
        paper=_WIKITEXT,
    ),
    "law-mt": Setting(
        name="law-mt",
        title="Law-MT at the paper's scale",
        text="The English side of the law part of the multi-domain translation corpus, as three files in the folder "
        "law-mt; an LM that was not trained on it. Needs a GPU and the model hub.",
        model="gpt2-large",
        train=("law-mt/train.en",),
        valid=("law-mt/dev.en",),
        test=("law-mt/test.en",),
        valid_tokens=None,
        test_tokens=None,
        sweep_tokens=None,
        timed_tokens=20_000,
        dims=(64, 128, 256, 512, 768, 1280),
        prompt="Having regard to the Treaty establishing the European Community,",
        paper=_LAW,
    ),
}


def sized(setting: Setting, max_tokens: int | None) -> Setting:
    """Return a setting with a store of so many tokens, and no more tokens to tune, test and time than that is worth."""
    if max_tokens is None:
        return setting
    if max_tokens < _FEWEST:
        raise OptionError(f"--max-tokens is {max_tokens}, expected at least {_FEWEST:,} to measure anything")
    most = {
        "valid_tokens": max_tokens // 8,
        "sweep_tokens": max_tokens // 8,
        "test_tokens": max_tokens // 16,
        "timed_tokens": max_tokens // 40,
    }
    most = {name: max(count, _FEWEST // 2) for name, count in most.items()}
    few: Json = {name: min(getattr(setting, name) or count, count) for name, count in most.items()}
    return replace(setting, max_tokens=max_tokens, **few)


def find_setting(name: str) -> Setting:
    """Return a setting by name."""
    if name not in SETTINGS:
        raise OptionError(f"--setting is {name!r}, expected one of {', '.join(SETTINGS)}")
    return SETTINGS[name]


def changed(setting: Setting, **given: str | tuple[str, ...] | None) -> Setting:
    """Return a setting with another model or other texts; another model or training text makes a store of its own."""
    new: Json = {name: value for name, value in given.items() if value}
    new |= {"store": None} if new.keys() & {"model", "train"} else {}
    return replace(setting, **new) if new else setting
