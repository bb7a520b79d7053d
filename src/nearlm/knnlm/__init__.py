"""The LM with its memory: score, explain, generate, attach, evaluate."""

from nearlm.knnlm.attachment import Attachment, attach
from nearlm.knnlm.evaluation import Evaluation, evaluate, evaluate_tokens
from nearlm.knnlm.generation import Continuation
from nearlm.knnlm.knnlm import KNNLM, Explanation, GenerateOptions
