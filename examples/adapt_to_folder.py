"""Give a model a memory of a folder of text, and see what it is worth.

Usage: python examples/adapt_to_folder.py docs/ mem
"""

import sys

import nearlm

folder, out, model = (*sys.argv[1:], "smollm2-135m")[:3]
found = nearlm.fit(model, folder, out, reporter=nearlm.Reporter())
print(found)  # perplexity on documents that the memory has not seen, with it and without

knnlm = nearlm.KNNLM.load(out)
print(knnlm.generate("To install it,", max_new_tokens=20))
