
import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields.ranges
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import reservations.rules.lifecycle
import reservations.models.calendar
import simple_history.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('telemetry', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='SitePolicy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('grid_seconds', models.PositiveIntegerField(default=3600, validators=[django.core.validators.MinValueValidator(60), django.core.validators.MaxValueValidator(86400)])),
                ('firm_horizon_seconds', models.PositiveIntegerField(default=1209600)),
                ('flex_horizon_seconds', models.PositiveIntegerField(default=259200)),
                ('freeze_seconds', models.PositiveIntegerField(default=43200)),
                ('longest_seconds', models.PositiveIntegerField(default=86400, validators=[django.core.validators.MinValueValidator(60), django.core.validators.MaxValueValidator(2678400)])),
                ('gpus_at_once', models.PositiveSmallIntegerField(default=4)),
                ('live_reservations', models.PositiveSmallIntegerField(default=6)),
                ('future_flex', models.PositiveSmallIntegerField(default=2, help_text='Flex reservations of one person that have not begun.')),
                ('quota_gpu_seconds', models.BigIntegerField(default=1440000, help_text='Per Membership, weighted GPU-seconds in any rolling 7 days.')),
                ('half_life_seconds', models.PositiveIntegerField(default=1209600)),
                ('late_return_ratio', models.FloatField(default=0.5, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1)])),
                ('no_show_seconds', models.PositiveIntegerField(default=900)),
                ('idle_seconds', models.PositiveIntegerField(default=1800)),
                ('idle_grace_seconds', models.PositiveIntegerField(default=600, help_text='From the warning to the release.')),
                ('idle_util_pct', models.FloatField(default=3, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(100)])),
                ('release_no_shows', models.BooleanField(default=True)),
                ('release_idle', models.BooleanField(default=False)),
                ('lost_seconds', models.PositiveIntegerField(default=600, help_text='A Gpu lost for longer refunds its reservation.')),
                ('stop_grace_seconds', models.PositiveIntegerField(default=30)),
                ('names_visible', models.BooleanField(default=True, help_text='Students see who holds a Gpu; off: groups only.')),
            ],
            options={
                'verbose_name_plural': 'site policy',
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('display_name', models.CharField(blank=True, max_length=80)),
                ('unix_user', models.CharField(blank=True, help_text='Existing Unix account (uid 1000 or more) that the Jobs run as.', max_length=32, validators=[django.core.validators.RegexValidator('^[a-z_][a-z0-9_-]{0,31}$', 'Not a Unix login.')])),
                ('hue', models.PositiveSmallIntegerField(default=210, validators=[django.core.validators.MaxValueValidator(359)])),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'ordering': ['username'],
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Account',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.SlugField(max_length=63, unique=True)),
                ('title', models.CharField(blank=True, max_length=120)),
                ('shares', models.PositiveIntegerField(default=1)),
                ('quota_gpu_seconds', models.BigIntegerField(blank=True, help_text='Weighted GPU-seconds in any rolling 7 days; empty: sum of members.', null=True)),
                ('hue', models.PositiveSmallIntegerField(default=210, help_text='Colour of the group on the calendar, 0 to 359.', validators=[django.core.validators.MaxValueValidator(359)])),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='reservations.account')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('label', models.CharField(max_length=60)),
                ('token_hash', models.CharField(editable=False, max_length=64, unique=True)),
                ('scopes', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField()),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='HistoricalAccount',
            fields=[
                ('id', models.BigIntegerField(auto_created=True, blank=True, db_index=True, verbose_name='ID')),
                ('name', models.SlugField(max_length=63)),
                ('title', models.CharField(blank=True, max_length=120)),
                ('shares', models.PositiveIntegerField(default=1)),
                ('quota_gpu_seconds', models.BigIntegerField(blank=True, help_text='Weighted GPU-seconds in any rolling 7 days; empty: sum of members.', null=True)),
                ('hue', models.PositiveSmallIntegerField(default=210, help_text='Colour of the group on the calendar, 0 to 359.', validators=[django.core.validators.MaxValueValidator(359)])),
                ('history_id', models.AutoField(primary_key=True, serialize=False)),
                ('history_date', models.DateTimeField(db_index=True)),
                ('history_change_reason', models.CharField(max_length=100, null=True)),
                ('history_type', models.CharField(choices=[('+', 'Created'), ('~', 'Changed'), ('-', 'Deleted')], max_length=1)),
                ('history_user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('parent', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='reservations.account')),
            ],
            options={
                'verbose_name': 'historical account',
                'verbose_name_plural': 'historical accounts',
                'ordering': ('-history_date', '-history_id'),
                'get_latest_by': ('history_date', 'history_id'),
            },
            bases=(simple_history.models.HistoricalChanges, models.Model),
        ),
        migrations.CreateModel(
            name='HistoricalMembership',
            fields=[
                ('id', models.BigIntegerField(auto_created=True, blank=True, db_index=True, verbose_name='ID')),
                ('shares', models.PositiveIntegerField(default=1)),
                ('is_head', models.BooleanField(default=False, help_text='Steers this Account.')),
                ('active', models.BooleanField(default=True)),
                ('quota_gpu_seconds', models.BigIntegerField(blank=True, help_text="Weighted GPU-seconds in any rolling 7 days; empty: the site's.", null=True)),
                ('history_id', models.AutoField(primary_key=True, serialize=False)),
                ('history_date', models.DateTimeField(db_index=True)),
                ('history_change_reason', models.CharField(max_length=100, null=True)),
                ('history_type', models.CharField(choices=[('+', 'Created'), ('~', 'Changed'), ('-', 'Deleted')], max_length=1)),
                ('account', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='reservations.account')),
                ('history_user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('user', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'historical membership',
                'verbose_name_plural': 'historical memberships',
                'ordering': ('-history_date', '-history_id'),
                'get_latest_by': ('history_date', 'history_id'),
            },
            bases=(simple_history.models.HistoricalChanges, models.Model),
        ),
        migrations.CreateModel(
            name='HistoricalSitePolicy',
            fields=[
                ('id', models.BigIntegerField(auto_created=True, blank=True, db_index=True, verbose_name='ID')),
                ('grid_seconds', models.PositiveIntegerField(default=3600, validators=[django.core.validators.MinValueValidator(60), django.core.validators.MaxValueValidator(86400)])),
                ('firm_horizon_seconds', models.PositiveIntegerField(default=1209600)),
                ('flex_horizon_seconds', models.PositiveIntegerField(default=259200)),
                ('freeze_seconds', models.PositiveIntegerField(default=43200)),
                ('longest_seconds', models.PositiveIntegerField(default=86400, validators=[django.core.validators.MinValueValidator(60), django.core.validators.MaxValueValidator(2678400)])),
                ('gpus_at_once', models.PositiveSmallIntegerField(default=4)),
                ('live_reservations', models.PositiveSmallIntegerField(default=6)),
                ('future_flex', models.PositiveSmallIntegerField(default=2, help_text='Flex reservations of one person that have not begun.')),
                ('quota_gpu_seconds', models.BigIntegerField(default=1440000, help_text='Per Membership, weighted GPU-seconds in any rolling 7 days.')),
                ('half_life_seconds', models.PositiveIntegerField(default=1209600)),
                ('late_return_ratio', models.FloatField(default=0.5, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1)])),
                ('no_show_seconds', models.PositiveIntegerField(default=900)),
                ('idle_seconds', models.PositiveIntegerField(default=1800)),
                ('idle_grace_seconds', models.PositiveIntegerField(default=600, help_text='From the warning to the release.')),
                ('idle_util_pct', models.FloatField(default=3, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(100)])),
                ('release_no_shows', models.BooleanField(default=True)),
                ('release_idle', models.BooleanField(default=False)),
                ('lost_seconds', models.PositiveIntegerField(default=600, help_text='A Gpu lost for longer refunds its reservation.')),
                ('stop_grace_seconds', models.PositiveIntegerField(default=30)),
                ('names_visible', models.BooleanField(default=True, help_text='Students see who holds a Gpu; off: groups only.')),
                ('history_id', models.AutoField(primary_key=True, serialize=False)),
                ('history_date', models.DateTimeField(db_index=True)),
                ('history_change_reason', models.CharField(max_length=100, null=True)),
                ('history_type', models.CharField(choices=[('+', 'Created'), ('~', 'Changed'), ('-', 'Deleted')], max_length=1)),
                ('history_user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'historical site policy',
                'verbose_name_plural': 'historical site policy',
                'ordering': ('-history_date', '-history_id'),
                'get_latest_by': ('history_date', 'history_id'),
            },
            bases=(simple_history.models.HistoricalChanges, models.Model),
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('shares', models.PositiveIntegerField(default=1)),
                ('is_head', models.BooleanField(default=False, help_text='Steers this Account.')),
                ('active', models.BooleanField(default=True)),
                ('quota_gpu_seconds', models.BigIntegerField(blank=True, help_text="Weighted GPU-seconds in any rolling 7 days; empty: the site's.", null=True)),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='memberships', to='reservations.account')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='memberships', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['account__name', 'user__username'],
            },
        ),
        migrations.CreateModel(
            name='Reservation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('start', models.DateTimeField()),
                ('end', models.DateTimeField(help_text='Half-open; moves to now when given back.')),
                ('booked_end', models.DateTimeField(help_text='The end that was booked.')),
                ('kind', models.CharField(choices=[('firm', 'firm'), ('flex', 'flex')], max_length=8)),
                ('state', models.CharField(choices=[('confirmed', 'confirmed'), ('active', 'active'), ('ended', 'ended'), ('released', 'released'), ('cancelled', 'cancelled'), ('displaced', 'displaced'), ('refunded', 'refunded')], default=reservations.rules.lifecycle.State['CONFIRMED'], max_length=12)),
                ('cost_gpu_seconds', models.BigIntegerField(help_text='weight x Gpus x seconds')),
                ('purpose', models.CharField(blank=True, max_length=120)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('checked_in_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('cancelled_at', models.DateTimeField(blank=True, null=True)),
                ('blind_seconds', models.PositiveIntegerField(default=0, help_text='Time without fresh samples: it stops every clock.')),
                ('keep_used', models.BooleanField(default=False)),
                ('kept_at', models.DateTimeField(blank=True, null=True)),
                ('idle_warned_at', models.DateTimeField(blank=True, null=True)),
                ('lost_since', models.DateTimeField(blank=True, help_text='Since when one of its Gpus is lost.', null=True)),
                ('decision', models.JSONField(blank=True, default=dict, help_text='The rule, its numbers, the policy version.')),
                ('version', models.PositiveIntegerField(default=1)),
                ('membership', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reservations', to='reservations.membership')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reservations', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['start', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='LedgerEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('hold', 'Hold'), ('release', 'Release'), ('charge', 'Charge')], max_length=8)),
                ('gpu_seconds', models.BigIntegerField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('reason', models.CharField(max_length=200)),
                ('membership', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='ledger', to='reservations.membership')),
                ('reservation', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='ledger', to='reservations.reservation')),
            ],
            options={
                'verbose_name_plural': 'ledger entries',
                'ordering': ['at', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='LateReturn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('start', models.DateTimeField()),
                ('end', models.DateTimeField()),
                ('weight', models.PositiveIntegerField()),
                ('permille', models.PositiveSmallIntegerField(help_text='lambda x 1000')),
                ('firm', models.BooleanField(default=True, help_text='Counts in quotas: it was firm when it came back.')),
                ('returned_at', models.DateTimeField()),
                ('charged_at', models.DateTimeField(blank=True, null=True)),
                ('gpu', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='telemetry.gpu')),
                ('membership', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='late_returns', to='reservations.membership')),
                ('reservation', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='late_returns', to='reservations.reservation')),
            ],
            options={
                'ordering': ['reservation_id', 'gpu_id', 'start'],
            },
        ),
        migrations.CreateModel(
            name='Allocation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('start', models.DateTimeField()),
                ('end', models.DateTimeField()),
                ('live', models.BooleanField(default=True)),
                ('weight', models.PositiveIntegerField(blank=True, help_text="The Pool's weight when it was booked; empty: the weight now.", null=True)),
                ('gpu', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='telemetry.gpu')),
                ('reservation', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='allocations', to='reservations.reservation')),
            ],
            options={
                'ordering': ['gpu_id', 'start'],
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('verb', models.CharField(help_text='e.g. reservation.booked', max_length=60)),
                ('subject', models.CharField(help_text='e.g. reservation:17', max_length=80)),
                ('reason', models.CharField(blank=True, max_length=400)),
                ('detail', models.JSONField(blank=True, default=dict)),
                ('actor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-at', '-pk'],
                'indexes': [models.Index(fields=['subject'], name='reservation_subject_64cbc2_idx'), models.Index(fields=['at'], name='reservation_at_29ed3a_idx')],
            },
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.UniqueConstraint(fields=('user', 'account'), name='one_membership_per_user_and_account'),
        ),
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(fields=['state', 'start'], name='reservation_state_723be9_idx'),
        ),
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(fields=['state', 'end'], name='reservation_state_9c1d3f_idx'),
        ),
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(fields=['membership', 'start'], name='reservation_members_1ad861_idx'),
        ),
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(fields=['user', 'state'], name='reservation_user_id_097731_idx'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('end__gte', models.F('start'))), name='reservation_ends_after_its_start'),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['membership', 'at'], name='reservation_members_b6cbd9_idx'),
        ),
        migrations.AddIndex(
            model_name='latereturn',
            index=models.Index(fields=['charged_at', 'end'], name='reservation_charged_512ca6_idx'),
        ),
        migrations.AddIndex(
            model_name='latereturn',
            index=models.Index(fields=['membership', 'end'], name='reservation_members_afb532_idx'),
        ),
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['gpu', 'end'], name='reservation_gpu_id_ca81c7_idx'),
        ),
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['start', 'end'], name='reservation_start_f9866d_idx'),
        ),
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['end'], name='reservation_end_3ba1d9_idx'),
        ),
        migrations.AddConstraint(
            model_name='allocation',
            constraint=reservations.models.calendar.NoOverlap(condition=models.Q(('live', True)), expressions=[(reservations.models.calendar.TsTzRange('start', 'end', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&'), (reservations.models.calendar.Int8Range('gpu', 'gpu'), '&&')], name='allocation_no_overlap'),
        ),
    ]
