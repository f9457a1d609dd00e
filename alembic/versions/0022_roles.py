"""Days are made as the owner of the store, for a service that owns nothing, and whose rights a new day has (S9).

What the function does is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

#: how it runs, what else it declares, what it does after a partition is attached
_MAKE_DAY = """
create or replace function coordinator.make_day(day date) returns text[] language plpgsql {how} as $$
declare
  first bigint := extract(epoch from day::timestamp) * 1000;
  last bigint := extract(epoch from (day + 1)::timestamp) * 1000;
  bounds text[];
  parent text;
  leaf text;
  made text[] := '{{}}';{declared}
begin
  perform pg_advisory_xact_lock(7165068069472137844);
  foreach parent in array array['half', 'op'] loop
    leaf := parent || '_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('coordinator.' || leaf) is not null
      or exists (select from coordinator.retention r where r.table_name = parent and day < r.kept_from);
    bounds := case parent
      when 'half' then array[(first - 1704067200000 << 22)::text, (last - 1704067200000 << 22)::text]
      else array[rpad(lpad(to_hex(first), 12, '0'), 32, '0'), rpad(lpad(to_hex(last), 12, '0'), 32, '0')] end;
    execute format('create table coordinator.%I (like coordinator.%I including all)', leaf, parent);
    execute format('alter table coordinator.%I attach partition coordinator.%I for values from (%L) to (%L)',
                   parent, leaf, bounds[1], bounds[2]);{attached}
    made := made || leaf;
  end loop;
  return made;
end $$"""

_ATTACHED = """
    for privilege, role in
      select a.privilege_type, case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_class c cross join aclexplode(c.relacl) a
       where c.oid = to_regclass('coordinator.' || parent) and a.grantee <> c.relowner loop
      execute format('grant %s on coordinator.%I to %s', privilege, leaf, role);
    end loop;"""


def upgrade() -> None:
    how = "security definer set lock_timeout = '2s' set search_path = pg_catalog, pg_temp"
    declared = "\n  privilege text;\n  role text;"
    op.execute(_MAKE_DAY.format(how=how, declared=declared, attached=_ATTACHED))
    op.execute("revoke execute on function coordinator.make_day(date) from public")


def downgrade() -> None:
    op.execute("drop function coordinator.make_day(date)")
    op.execute(_MAKE_DAY.format(how="set lock_timeout = '2s'", declared="", attached=""))
