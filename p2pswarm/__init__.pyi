from p2pswarm import data, errors, models, testing
from p2pswarm.api.node import Node
from p2pswarm.api.run import Run
from p2pswarm.api.server import Server
from p2pswarm.api.train import train
from p2pswarm.api.trainer import RunTrainer as Trainer
from p2pswarm.compute.trained_model import load_model as load
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.progress import events
from p2pswarm.wire.message import Message, Range, Size, message

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
    "data",
    "errors",
    "events",
    "load",
    "message",
    "models",
    "testing",
    "train",
]
