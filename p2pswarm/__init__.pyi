from p2pswarm import data, models, testing
from p2pswarm.api.node import Node
from p2pswarm.api.one_call import train
from p2pswarm.api.run import Run
from p2pswarm.api.server import Server
from p2pswarm.api.trainer import RunTrainer as Trainer
from p2pswarm.base import errors
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.models.compute.inference import load_model as load
from p2pswarm.net.wire.message import Message, Range, Size, message
from p2pswarm.progress import cost_events, events

__all__ = [
    "Address",
    "Contact",
    "Message",
    "Node",
    "PeerId",
    "Range",
    "Run",
    "Server",
    "Size",
    "Trainer",
    "cost_events",
    "data",
    "errors",
    "events",
    "load",
    "message",
    "models",
    "testing",
    "train",
]
