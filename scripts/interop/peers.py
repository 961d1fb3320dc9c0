"""Peers as LMCache's PD backend has them, with msgspec's own tagged structs.

What moves the bytes of chunks is left out: LMCache does that by NIXL.
"""

import threading
from typing import Union

import msgspec
import zmq

BINARY = 4  # fmt of opaque bytes
PATIENCE_MS = 20_000


class Message(msgspec.Struct, tag=True):
    pass


class AllocRequest(Message):
    keys: list[str]
    fmt: int
    shape: list[int]
    dtype: str
    last_chunk_toks: int
    req_id: str = ""
    is_last_batch: bool = False
    total_chunks: int = 0


class AllocResponse(Message):
    remote_indexes: list[int]
    already_sent_indexes: list[int] = []


class ProxyNotif(Message):
    req_id: str


class CancelNotif(Message):
    req_id: str
    keys: list[str]


MESSAGES = Union[AllocRequest, AllocResponse, ProxyNotif, CancelNotif]
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(MESSAGES).decode


class Sender:
    """DEALER, empty delimiter, one request outstanding; never attaches, never commits."""

    def __init__(self, endpoint, identity):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)  # LMCache waits for ever
        self.socket.connect(endpoint)
        self.lock = threading.Lock()

    def ask(self, message):
        with self.lock:
            self.socket.send_multipart([b"", encode(message)])
            frames = self.socket.recv_multipart()
        assert len(frames) == 2 and frames[0] == b"", frames
        answer = decode(frames[1])
        assert isinstance(answer, AllocResponse), answer
        return answer

    def alloc(self, req_id, total, keys, last=False, size=4096):
        return self.ask(AllocRequest(keys, BINARY, [size], "uint8", size, req_id, last, total))

    def cancel(self, req_id, keys=()):
        return self.ask(CancelNotif(req_id, list(keys)))

    def close(self):
        self.context.destroy(linger=0)


class Notifier:
    """PUSH to the proxy."""

    def __init__(self, endpoint):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUSH)
        self.socket.setsockopt(zmq.LINGER, PATIENCE_MS)
        self.socket.connect(endpoint)

    def ready(self, req_id):
        self.socket.send(encode(ProxyNotif(req_id)))

    def close(self):
        self.socket.close()
        self.context.term()


class Served:
    """A bound socket and the thread that owns it. died is what ended the thread."""

    def __init__(self, kind, endpoint):
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(endpoint)
        self.stop = threading.Event()
        self.changed = threading.Condition()
        self.died = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.stop.is_set():
                if self.socket.poll(20):
                    self.take(self.socket.recv_multipart())
        except Exception as e:
            with self.changed:
                self.died = e
                self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            return self.changed.wait_for(condition, PATIENCE_MS / 1000)

    def close(self):
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)


class Receiver(Served):
    """ROUTER: the identity is the first frame, the payload the last; what lies
    between is not echoed. Whatever comes in gets an AllocResponse, never an
    error text."""

    def __init__(self, endpoint, slots=16):
        self.free = list(range(slots))
        self.unknown = []  # why what could not be decoded could not be
        super().__init__(zmq.ROUTER, endpoint)

    def take(self, frames):
        self.socket.send_multipart([frames[0], b"", encode(self.answer(frames[-1]))])

    def answer(self, payload):
        try:
            message = decode(payload)
        except msgspec.DecodeError as e:  # ValidationError is one
            with self.changed:
                self.unknown.append(str(e))
                self.changed.notify_all()
            return AllocResponse([-1])
        if isinstance(message, CancelNotif):
            return AllocResponse([])
        if not isinstance(message, AllocRequest):
            return AllocResponse([-1])
        if len(message.keys) > len(self.free):
            return AllocResponse([-1] * len(message.keys))
        return AllocResponse([self.free.pop(0) for _ in message.keys])


class Proxy(Served):
    """PULL; dies of a message that it does not know."""

    def __init__(self, endpoint):
        self.ids = []
        super().__init__(zmq.PULL, endpoint)

    def take(self, frames):
        message = msgspec.msgpack.decode(frames[-1], type=ProxyNotif)
        with self.changed:
            self.ids.append(message.req_id)
            self.changed.notify_all()
