"""How LMCache moves the bytes of chunks: its sender is a NIXL initiator.

After lmcache/v1/transfer_channel/nixl_channel.py of lmcache 0.5.6.
"""

import ctypes
import time
import uuid
from typing import Union

import msgspec
import zmq
from nixl._api import nixl_agent, nixl_agent_config

import peers


class NixlInitRequest(peers.Message):
    local_meta_bytes: bytes


class NixlMemRegRequest(peers.Message):
    remote_agent_name: bytes
    local_id: str
    local_xfer_dlist_bytes: bytes


class NixlInitResponse(peers.Message):
    remote_agent_name: bytes
    remote_meta_bytes: bytes


class NixlMemRegResponse(peers.Message):
    remote_xfer_dlist_bytes: bytes


ANSWERS = Union[NixlInitResponse, NixlMemRegResponse]


class Initiator:
    """Staging memory of some chunks, written into a receiver's slots."""

    def __init__(self, chunk, chunks):
        self.chunk = chunk
        self.staging = bytearray(chunk * chunks)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.staging))
        self.agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=["UCX"]))
        self.registered = self.agent.register_memory([(address, len(self.staging), 0, "")], mem_type="cpu")
        self.own = self.agent.get_xfer_descs([(address + i * chunk, chunk, 0) for i in range(chunks)], mem_type="cpu")
        self.remote = None
        self.local = self.agent.prep_xfer_dlist("", self.own, mem_type="cpu")

    def connect(self, endpoint):
        """The handshake at a receiver's init port."""
        context = zmq.Context()
        try:
            s = context.socket(zmq.REQ)
            s.setsockopt(zmq.RCVTIMEO, peers.PATIENCE_MS)  # LMCache waits for ever
            s.connect(endpoint)

            def ask(message):
                s.send(peers.encode(message))
                return msgspec.msgpack.decode(s.recv(), type=ANSWERS)
            there = ask(NixlInitRequest(self.agent.get_agent_metadata()))
            name = self.agent.add_remote_agent(there.remote_meta_bytes)
            listed = ask(NixlMemRegRequest(there.remote_agent_name, "lmcache", self.agent.get_serialized_descs(self.own)))
            slots = self.agent.deserialize_descs(listed.remote_xfer_dlist_bytes)
            self.remote = self.agent.prep_xfer_dlist(name, slots)
        finally:
            context.destroy(linger=0)

    def write(self, own, slots):
        """Returns when these chunks of the staging memory are in the slots."""
        transfer = self.agent.make_prepped_xfer("WRITE", self.local, own, self.remote, slots)
        try:
            self.agent.transfer(transfer)
            end = time.monotonic() + peers.PATIENCE_MS / 1000
            while (state := self.agent.check_xfer_state(transfer)) == "PROC":
                if time.monotonic() > end:
                    raise TimeoutError(f"a write to slots {slots} does not end")
                time.sleep(0.001)
            if state != "DONE":
                raise RuntimeError(f"a write to slots {slots} ends with {state}")
        finally:
            transfer.release()

    def close(self):
        """In this order: the agent, with its threads, goes when nobody has it."""
        for handle in (self.remote, self.local):
            if handle:
                handle.release()
        self.agent.deregister_memory(self.registered)
        del self.remote, self.local, self.agent
