"""Drafting changes how often the model runs, and nothing else: tokens, random numbers, stops and streams stay."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gated import SETTINGS
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    MistralConfig,
    MistralForCausalLM,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from calls import build, build_index, load_knnlm
from nearlm.knnlm import Attachment
from nearlm.knnlm.draft_length import Acceptance
from nearlm.knnlm.draft_passes import can_crop
from nearlm.knnlm.draft_votes import Chain
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.speculation import Row, Speculation
from nearlm.mixing import Gate, Memory, build_infinigram, untrained_mixture
from nearlm.model.lm import LM
from nearlm.model.passes import turn
from nearlm.search import Retriever
from nearlm.store import SearchSettings
from tiny import make_llama, make_text

PROMPT = "the licence grants"


class Sure(Acceptance):
    """Expects every draft to be accepted, so that all of it is tried."""

    def rates(self, chain):
        return np.ones(len(chain))


class Oracle(Drafter):
    """Drafts what is known to come, but for some tokens that are wrong; real drafts where nothing is known."""

    def chain(self, read, near, row):
        known = self.coming[len(read) : len(read) + 8]
        wrong = self.wrong[len(read) : len(read) + len(known)]
        tokens = np.where(wrong, (known + 1) % 300, known).astype(np.int32)
        return Chain(tokens, np.full(len(tokens), 9, np.int32), np.ones(len(tokens)))


def drafter_of(knnlm):
    return Drafter(knnlm.store, knnlm.drafter.infinigram, Sure())


def oracle_of(knnlm, whole, wrong):
    made = Oracle(knnlm.store, None, Sure())
    made.coming = np.array(whole)
    made.wrong = np.array(wrong)
    return made


def speculate(knnlm, ids, drafter, streamer=None, **options):
    """Generate with drafts; return all tokens and what was done."""
    speculation = Speculation(drafter, streamer=streamer)
    attached = nullcontext() if knnlm.memory is None else Attachment(knnlm.lm, knnlm.memory, speculation.watch)
    given = {"attention_mask": torch.ones(1, len(ids), dtype=torch.long), "pad_token_id": 1, "streamer": streamer}
    with turn(knnlm.lm.model), attached:
        out = knnlm.lm.model.generate(torch.tensor([ids]), custom_generate=speculation, **given, **options)
    return out[0].tolist(), speculation.rows[0]


def plainly(knnlm, ids, **options):
    attached = nullcontext() if knnlm.memory is None else Attachment(knnlm.lm, knnlm.memory)
    with turn(knnlm.lm.model), attached:
        mask = torch.ones(1, len(ids), dtype=torch.long)
        out = knnlm.lm.model.generate(torch.tensor([ids]), attention_mask=mask, pad_token_id=1, **options)
    return out[0].tolist()


def with_mixture(store, lm):
    """A kNN-LM whose mixture of all sources nobody trained."""
    retriever = Retriever(store)
    tuned = SearchSettings(index="default", **SETTINGS)
    mixture = untrained_mixture(("knn", "ngram", "text"), build_infinigram(store), tuned)
    memory = Memory.of(retriever, tuned, Gate.load(store, "counts").at(0.5), mixture)
    return SimpleNamespace(lm=lm, store=store, memory=memory, drafter=Drafter.of(store, memory))


@pytest.fixture(scope="module")
def memories(knnlm, store, double_lm, bare):
    """One λ, a gate, a gate and a mixture, no keys, λ = 0, and no memory."""
    return [
        knnlm,
        load_knnlm(store, double_lm, gate="learned", skip=0.5),
        with_mixture(store, double_lm),
        bare,
        load_knnlm(knnlm.store, knnlm.lm, lam=0.0),
        load_knnlm(bare.store, double_lm, knn=False),
    ]


@settings(max_examples=18)
@given(st.data())
def test_drafting_never_changes_greedy_output(memories, data):
    knnlm = data.draw(st.sampled_from(memories))
    length = data.draw(st.integers(1, 12))
    place = data.draw(st.integers(0, len(knnlm.store.tokens) - length - 1))
    random = st.lists(st.integers(0, 299), min_size=1, max_size=12)
    ids = data.draw(st.one_of(random, st.just(knnlm.store.tokens[place : place + length].tolist())))
    options = {"max_new_tokens": data.draw(st.integers(1, 16)), "do_sample": False}
    options |= data.draw(st.sampled_from([{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 3}]))
    expected = plainly(knnlm, ids, **options)
    wrong = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    for drafter in (drafter_of(knnlm), oracle_of(knnlm, expected, wrong)):
        found, said = speculate(knnlm, ids, drafter, **options)
        assert found == expected
        assert len(said.drafted) == len(found) - len(ids)
        assert len(said.passes) == said.drafted.count(False) + said.drafted[-1], (
            "drafts are followed by one more, or end"
        )


@settings(max_examples=5)
@given(seed=st.integers(0, 50), lam=st.floats(0, 1), k=st.integers(1, 40), dim=st.sampled_from([16, 32]))
def test_random_models_and_stores_write_the_same_with_drafts(tmp_path_factory, tokenizer, seed, lam, k, dim):
    folder = tmp_path_factory.mktemp("random")
    (folder / "text.txt").write_text(make_text(50, seed=seed))
    lm = LM(make_llama(seed=seed, hidden_size=dim, num_attention_heads=2).double(), tokenizer, name="double")
    made = build(lm, str(folder / "text.txt"), folder / "store", window=32, key_dtype="float32", quiet=True)
    build_index(made, "flat", quiet=True)
    knnlm = load_knnlm(made, lm, lam=lam, knn_temperature=2.0, k=min(k, len(made)))
    ids = made.tokens[:7].tolist()
    options = {"max_new_tokens": 20, "do_sample": False}
    assert speculate(knnlm, ids, drafter_of(knnlm), **options)[0] == plainly(knnlm, ids, **options)


class Oracles(Oracle):
    """Knows the rows of a batch, and which of their tokens it gets wrong."""

    def chain(self, read, near, row):
        for begin, coming in zip(self.begins, self.rows, strict=True):
            self.coming = coming[begin:]
            if self.coming[: len(read)].tolist() == read.tolist():
                return super().chain(read, near, row)
        raise AssertionError("a row was asked for that nobody writes")


def oracles_of(knnlm, prompts, rows):
    made = Oracles(knnlm.store, None, Sure())
    made.begins = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
    made.rows = rows.numpy()
    return made


def together(knnlm, prompts, speculation=None, **options):
    """Write a batch, with drafts or without."""
    width = max(map(len, prompts))
    ids = torch.tensor([[1] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    watch = None if speculation is None else speculation.watch
    attached = nullcontext() if knnlm.memory is None else Attachment(knnlm.lm, knnlm.memory, watch)
    given = {"attention_mask": mask, "pad_token_id": 1, "custom_generate": speculation, **options}
    with turn(knnlm.lm.model), attached:
        return knnlm.lm.model.generate(ids, **given)


@settings(max_examples=15, phases=[Phase.generate])
@given(st.data())
def test_drafts_never_change_the_greedy_output_of_a_batch(memories, data):
    """Rows of unlike lengths end at unlike times, and each has its own drafts, right and wrong ones."""
    knnlm = data.draw(st.sampled_from(memories))
    prompts = []
    for _ in range(data.draw(st.integers(2, 4))):
        length = data.draw(st.integers(1, 12))
        place = data.draw(st.integers(0, len(knnlm.store.tokens) - length - 1))
        prompts.append(knnlm.store.tokens[place : place + length].tolist())
    options = {"max_new_tokens": data.draw(st.integers(1, 16)), "do_sample": False}
    options |= data.draw(st.sampled_from([{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 3}]))
    whole = together(knnlm, prompts, **options)
    end = int(data.draw(st.sampled_from(whole[:, max(map(len, prompts)) :].flatten().tolist())))
    expected = together(knnlm, prompts, eos_token_id=end, **options)
    oracles = oracles_of(knnlm, prompts, whole)
    oracles.wrong = np.array(data.draw(st.lists(st.booleans(), min_size=whole.shape[1], max_size=whole.shape[1])))
    for drafter in (drafter_of(knnlm), oracles):
        speculation = Speculation(drafter, np.ones(4 * 17))
        found = together(knnlm, prompts, speculation, eos_token_id=end, **options)
        assert found.tolist() == expected.tolist()
        assert len(speculation.rows) == len(prompts)
        assert all(len(row.drafted) == sum(one.written for one in row.passes) for row in speculation.rows)


def test_a_batch_of_right_drafts_needs_few_passes(knnlm):
    prompts = [knnlm.prompt_ids(PROMPT), knnlm.prompt_ids("free")]
    options = {"max_new_tokens": 25, "min_new_tokens": 25, "do_sample": False}
    expected = together(knnlm, prompts, **options)
    oracles = oracles_of(knnlm, prompts, expected)
    oracles.wrong = np.zeros(99, bool)
    speculation = Speculation(oracles, np.ones(34))
    assert together(knnlm, prompts, speculation, **options).tolist() == expected.tolist()
    assert [row.passes for row in speculation.rows] == [[(0, 1), (8, 9), (8, 9), (5, 6)]] * 2


def test_a_batch_is_left_to_transformers_if_rows_depend_on_each_other_or_on_chance(knnlm):
    prompts = [knnlm.prompt_ids(PROMPT), knnlm.prompt_ids("free")]
    options = {"max_new_tokens": 6, "do_sample": False}
    for more in (
        {"do_sample": True},
        {"prefix_allowed_tokens_fn": lambda row, read: [5 + row, 9]},
        {"logits_processor": [lambda read, scores: scores.roll(len(read), -1)]},
        {"eos_token_id": None, "stopping_criteria": [EndsWith(int(together(knnlm, prompts, **options)[0, -4]))]},
    ):
        speculation = Speculation(drafter_of(knnlm))
        torch.manual_seed(3)
        expected = together(knnlm, prompts, **{**options, **more})
        torch.manual_seed(3)
        found = together(knnlm, prompts, speculation, **{**options, **more})
        assert found.tolist() == expected.tolist() and not speculation.rows


class EndsWith(StoppingCriteria):
    """Ends rows that end with a token; without an EOS transformers writes on until all have ended."""

    def __init__(self, token):
        self.token = token

    def __call__(self, ids, scores, **_):
        return ids[:, -1] == self.token


def test_right_drafts_need_few_passes_and_wrong_ones_cost_none(knnlm):
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 25, "min_new_tokens": 25, "do_sample": False}
    expected = plainly(knnlm, ids, **options)
    right = speculate(knnlm, ids, oracle_of(knnlm, expected, np.zeros(99, bool)), **options)[1]
    assert right.passes == [(0, 1), (8, 9), (8, 9), (5, 6)] and sum(right.drafted) == 8 + 8 + 5, (
        "each pass writes its draft and one more"
    )
    wrong = speculate(knnlm, ids, oracle_of(knnlm, expected, np.ones(99, bool)), **options)[1]
    assert len(wrong.passes) == 25 and not any(wrong.drafted)


def test_one_search_serves_all_positions_of_a_pass(knnlm, searches):
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 19, "min_new_tokens": 19, "do_sample": False}
    expected = plainly(knnlm, ids, **options)
    searches.clear()
    speculate(knnlm, ids, oracle_of(knnlm, expected, np.zeros(99, bool)), **options)
    assert searches == [1, 9, 9]


SAMPLING = [
    {"temperature": 0.6},
    {"top_k": 4, "temperature": 1.7},
    {"top_p": 0.7},
    {"repetition_penalty": 1.8, "top_k": 0},
]


@pytest.mark.parametrize("options", SAMPLING, ids=str)
def test_a_seed_gives_the_same_sample_with_and_without_drafts(memories, options):
    options = {"max_new_tokens": 15, "do_sample": True, **options}
    for number, knnlm in enumerate((memories[0], memories[2])):
        ids = knnlm.store.tokens[:6].tolist()
        torch.manual_seed(number)
        expected = plainly(knnlm, ids, **options)
        after = torch.rand(1)
        for drafter in (drafter_of(knnlm), oracle_of(knnlm, expected, np.arange(99) % 4 == 2)):
            torch.manual_seed(number)
            assert speculate(knnlm, ids, drafter, **options)[0] == expected
            assert torch.rand(1) == after, "as many random numbers were drawn"


PROCESSORS = {
    "all": [],
    "temperature": [TemperatureLogitsWarper(0.5)],
    "top-k": [TemperatureLogitsWarper(1.5), TopKLogitsWarper(3)],
    "top-p": [TopPLogitsWarper(0.6)],
    "penalty": [RepetitionPenaltyLogitsProcessor(1.6)],
}


class Config:
    do_sample = True
    max_length = 64


@pytest.mark.parametrize("name", PROCESSORS)
def test_samples_are_of_the_mixture_itself(knnlm, name):
    """A chi-square of what a draft of two tokens becomes: both, the first and another, or another one at once."""
    ids = torch.tensor([knnlm.store.tokens[:6].tolist()])
    with Attachment(knnlm.lm, knnlm.memory) as model, torch.no_grad():
        first = int(model(ids).logits[0, -1].topk(2).indices[1])
        second = int(model(torch.tensor([[*ids[0], first]])).logits[0, -1].argmax())
        draft = np.array([first, second], np.int32)
        read = torch.cat([ids, torch.tensor([[first, second]])], 1)
        logits = model(read).logits[0, -3:]
    processor = LogitsProcessorList(PROCESSORS[name])
    p = [processor(read[:, : 6 + i], logits[i : i + 1].float()).softmax(-1)[0].double() for i in range(3)]
    expected = {}
    for token, mass in enumerate(p[0].tolist()):
        expected[(token,)] = mass
    for token, mass in enumerate(p[1].tolist()):
        expected[(first, token)] = float(p[0][first]) * mass
    for token, mass in enumerate(p[2].tolist()):
        expected[(first, second, token)] = float(p[0][first] * p[1][second]) * mass
    del expected[(first,)], expected[(first, second)]
    assert sum(expected.values()) == pytest.approx(1)
    torch.manual_seed(7)
    draws = 1200
    seen = dict.fromkeys(expected, 0)
    for _ in range(draws):
        row = Row(ids, processor, lambda ids, _: torch.zeros(1, dtype=torch.bool), Config, None)
        row.go_on(logits, draft)
        seen[tuple(row.latest.tolist())] += 1
    likely = [key for key, mass in expected.items() if mass * draws >= 5]
    rest = sum(expected[key] for key in expected.keys() - set(likely)) * draws
    others = sum(seen[key] for key in seen.keys() - set(likely))
    terms = [(seen[key] - expected[key] * draws) ** 2 / (expected[key] * draws) for key in likely]
    statistic = sum(terms) + (others - rest) ** 2 / max(rest, 5)
    freedom = len(likely)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom), (statistic, freedom)
    assert all(seen[key] == 0 for key, mass in expected.items() if mass == 0)


def test_eos_inside_a_draft_ends_the_text(knnlm):
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 20, "do_sample": False}
    whole = plainly(knnlm, ids, eos_token_id=299, **options)
    for place in (3, 7, 9):
        end = whole[len(ids) + place]
        expected = plainly(knnlm, ids, eos_token_id=end, **options)
        found, said = speculate(knnlm, ids, oracle_of(knnlm, whole, np.zeros(99, bool)), eos_token_id=end, **options)
        assert found == expected and found[-1] == end and len(said.drafted) == len(found) - len(ids)


class Recorder:
    """A streamer that notes what it is given."""

    def __init__(self):
        self.put_, self.ended = [], 0

    def put(self, value):
        self.put_.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


def test_a_streamer_is_given_the_same_with_drafts(knnlm):
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 14, "do_sample": False}
    plain, drafted = Recorder(), Recorder()
    whole = plainly(knnlm, ids, streamer=plain, **options)
    speculate(knnlm, ids, oracle_of(knnlm, whole, np.arange(99) % 5 == 1), streamer=drafted, **options)
    assert drafted.put_ == plain.put_ and drafted.ended == plain.ended == 1


def test_logits_processors_are_called_as_without_drafts(knnlm):
    """A processor with a state of its own sees every text once, and none that was only drafted."""
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 12, "do_sample": False}
    calls = []

    def watch(read, scores):
        calls.append(read[0].tolist())
        return scores

    whole = plainly(knnlm, ids, logits_processor=[watch], **options)
    expected, calls = calls, []
    speculate(knnlm, ids, oracle_of(knnlm, whole, np.arange(99) % 3 == 1), logits_processor=[watch], **options)
    assert calls == expected


@pytest.mark.parametrize("kind", ["sliding", "gpt2"])
def test_other_architectures_write_the_same_with_drafts(tmp_path, tokenizer, kind):
    torch.manual_seed(0)
    small = {"vocab_size": 300, "eos_token_id": 299, "bos_token_id": 0}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **small))
    else:
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = MistralForCausalLM(MistralConfig(sliding_window=8, num_key_value_heads=2, **shape, **small))
    lm = LM(model.double().eval(), tokenizer, name=kind)
    (tmp_path / "text.txt").write_text(make_text(60, seed=1))
    made = build(lm, str(tmp_path / "text.txt"), tmp_path / "store", window=32, key_dtype="float32", quiet=True)
    build_index(made, "flat", quiet=True)
    knnlm = load_knnlm(made, lm, lam=0.6, knn_temperature=2.0, k=8)
    ids = made.tokens[:12].tolist()
    options = {"max_new_tokens": 25, "do_sample": False}
    expected = plainly(knnlm, ids, **options)
    for drafter in (drafter_of(knnlm), oracle_of(knnlm, expected, np.arange(99) % 6 == 4)):
        found, said = speculate(knnlm, ids, drafter, **options)
        assert found == expected and len(said.passes) < 25


def test_what_cannot_be_drafted_for_is_left_to_transformers(knnlm):
    ids = knnlm.prompt_ids(PROMPT)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert not can_crop(knnlm.lm.model, None)
    with Attachment(knnlm.lm, knnlm.memory):
        speculation = Speculation(drafter_of(knnlm))
        given = {"custom_generate": speculation, "return_dict_in_generate": True, "output_scores": True, **options}
        made = knnlm.lm.model.generate(torch.tensor([ids]), pad_token_id=1, **given)
    assert made.sequences[0].tolist() == plainly(knnlm, ids, **options) and len(made.scores) == 6
    assert not speculation.rows
