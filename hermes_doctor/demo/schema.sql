-- The tables of a state.db that the demo needs: a small schema of our own, whose names are those of hermes-agent.
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (31);

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    session_key TEXT,
    model TEXT,
    model_config TEXT,
    parent_session_id TEXT REFERENCES sessions (id),
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    last_activity_at REAL,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    api_call_count INTEGER DEFAULT 0,
    title TEXT,
    pinned INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0,
    handoff_state TEXT
);
CREATE INDEX idx_sessions_parent ON sessions (parent_session_id);

CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    timestamp REAL NOT NULL,
    reasoning TEXT,
    reasoning_details TEXT,
    codex_reasoning_items TEXT,
    active INTEGER NOT NULL DEFAULT 1,
    compacted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX idx_messages_session ON messages (session_id, timestamp);

CREATE TABLE session_model_usage (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    task TEXT NOT NULL DEFAULT '',
    input_tokens INTEGER DEFAULT 0,
    PRIMARY KEY (session_id, model, task)
);

CREATE TABLE gateway_routing (
    scope TEXT NOT NULL,
    session_key TEXT NOT NULL,
    entry_json TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (scope, session_key)
);

CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT);
