"""Models that can only be asked: ONNX files and servers, with patience, a memory of answers, or labels alone."""

from hardcase.blackbox.client import checked_url, is_here
from hardcase.blackbox.http import Http, Manners
from hardcase.blackbox.layout import Pixels
from hardcase.blackbox.onnx import Onnx
from hardcase.blackbox.wrapping import Cached, LabelOnly, Patient, Unanswered

__all__ = [
    "Cached",
    "Http",
    "LabelOnly",
    "Manners",
    "Onnx",
    "Patient",
    "Pixels",
    "Unanswered",
    "checked_url",
    "is_here",
]
