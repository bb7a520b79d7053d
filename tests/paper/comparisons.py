"""A comparison at a tiny size."""

from nearlm.paper.settings import Setting
from tiny import make_text


def tiny_setting(model_folder, folder, budgets=(0.05,)) -> Setting:
    texts = {}
    for number, split in enumerate(("train", "valid", "test", "unrelated")):
        (folder / split).mkdir(parents=True)
        for document in range(12):
            path = folder / split / f"{document}.txt"
            path.write_text(make_text(40, seed=100 * number + document) + " zebra quokka")
        texts[split] = (str(folder / split),)
    sizes = {"valid_tokens": 1500, "test_tokens": 600, "timed_tokens": 200}
    return Setting("comparison", "Tiny <rows>", "About.", str(model_folder), **texts, **sizes, budgets=budgets)
