"""The LM with its memory: score, explain, generate, attach, evaluate."""

from nearlm.knnlm.attachment import Attachment, attach
from nearlm.knnlm.evaluation import Evaluation, ScoredText, evaluate, evaluate_tokens, score_tokens
from nearlm.knnlm.knnlm import KNNLM, Explanation, GenerateOptions
