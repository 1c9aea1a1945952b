"""What known tools count, so that a published number can be compared.

Each convention is a list of criteria as ``--criteria`` takes it; an option that it does not name
keeps our default, a criterion that it does not name is refused. The facts are those of the tools'
code, read for the differences that change numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONVENTIONS"]

CONVENTIONS: Mapping[str, str] = {
    # channel means of every convolution and dense layer before activation; corners open
    "default": "",
    # channels of all layers after activation, pooling and softmax counted; each layer scaled within
    # an input, then averaged
    "deepxplore": "nc:layers=activated-softmax,scale=input,order=scale-mean,threshold=0",
    # channels of all layers after activation but the softmax; averaged, then scaled within an input
    "adapt": "nc:layers=activated,scale=input,order=mean-scale,epsilon=1e-6,threshold=0.5,"
    "tknc:layers=activated,k=3",
    # every unit after activation; the highest value is a corner
    "deepgauge": "kmnc:mode=unit,layers=activated,top=corner,constant=never,"
    "nbc:mode=unit,layers=activated,equal=above,snac:mode=unit,layers=activated,equal=above,"
    "tknc:mode=unit,layers=activated,k=2,tknp:mode=unit,layers=activated,k=2",
    # every unit as given; raw thresholds; values on a bound are corners; constant units stay in the
    # denominator
    "dnn-tip": "nc:mode=unit,threshold=0,kmnc:mode=unit,top=corner,constant=never,"
    "nbc:mode=unit,equal=both,snac:mode=unit,equal=above,tknc:mode=unit,"
    "lsa:per=all,most=300,dsa,mdsa:per=all,squared=true,"
    "lsc:per=all,most=300,lower=0,upper=2000,dsc:lower=0,upper=2,"
    "mdsc:per=all,squared=true,lower=0,upper=2000",
    # channel means of convolutions and dense layers; sections left-open, so the lowest value is
    # dropped; ordered patterns
    "neural-coverage": "nc:scale=input,order=mean-scale,threshold=0.5,kmnc:cuts=left-open,"
    "nbc,snac,tknc,tknp:ordered=true,nlc",
    # channels of all layers after activation, pooling and softmax counted; closed sections; a unit
    # counts for NBC when both corners were seen
    "coverage-guided": "nc:layers=activated-softmax,scale=input,order=scale-mean,threshold=0,"
    "kmnc:layers=activated-softmax,cuts=closed,constant=all,"
    "nbc:layers=activated-softmax,count=both,snac:layers=activated-softmax",
}
